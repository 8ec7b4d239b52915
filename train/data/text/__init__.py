"""Text to train on: embedded, in files, or prepared by TensorFlow Datasets."""
