"""Extensions of an encoding beyond its trained length or grid, one per file."""
