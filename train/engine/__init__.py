"""What all training programs use: configs, the training loop, checkpoints, metrics and results."""
