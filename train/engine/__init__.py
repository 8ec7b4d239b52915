"""The engine of all training programs: configs, the training loop, checkpoints, metrics and results."""
