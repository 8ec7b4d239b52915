"""Fair comparisons of encodings: `python -m train.compare`."""
