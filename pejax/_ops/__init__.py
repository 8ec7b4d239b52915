"""Functions from arrays to arrays that know nothing of encodings, attention or models."""
