"""The parts of a training run that all programs share."""
