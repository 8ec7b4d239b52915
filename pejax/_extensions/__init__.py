"""Ways to extend an encoding beyond what it was trained on, one per file."""
