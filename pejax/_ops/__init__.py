"""Array functions that do not depend on encodings, attention or models."""
