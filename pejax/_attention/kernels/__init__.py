"""Shared by the hand-written kernels for GPUs and TPUs."""
