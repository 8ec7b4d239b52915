"""Diffusion transformers: `python -m train.dit`."""
