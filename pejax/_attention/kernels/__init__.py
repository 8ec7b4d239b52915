"""The code that the hand-written kernels for GPUs and TPUs share."""
