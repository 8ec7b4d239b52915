"""Whether a training step fits on a machine: `python -m train.plan`."""
