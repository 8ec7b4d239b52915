"""Text data: embedded, in files, or prepared by TensorFlow Datasets."""
