"""Ways to stretch a trained encoding, one per file."""
