"""Attention with position: a dense reference, tiles with linear memory, kernels, and what chooses among them."""
