"""Proof, figures and training on a GPU in minutes: `python -m benchmarks.hardware`."""
