"""Training data: embedded, in files and folders, or prepared by TensorFlow Datasets; nothing is downloaded."""
