"""Whether a train step fits on a machine: `python -m train.plan`."""
