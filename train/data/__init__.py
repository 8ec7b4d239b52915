"""Data to train on: embedded, in folders, or prepared by TensorFlow Datasets; nothing is ever downloaded."""
