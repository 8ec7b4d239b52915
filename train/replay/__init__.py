"""Replay the step that halted a run, and report which gradients are not finite."""
