"""The models, one per file."""
