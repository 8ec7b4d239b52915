"""Kernels on Pallas's Mosaic GPU backend, for Hopper GPUs."""
