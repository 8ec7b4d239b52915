"""Attention by Triton kernels and by cuDNN."""
