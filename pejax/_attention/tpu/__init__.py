"""Attention by Mosaic kernels."""
