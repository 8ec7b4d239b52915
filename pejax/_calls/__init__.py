"""What every call passes through: arguments read by their annotations, and refused in one line with a hint."""
