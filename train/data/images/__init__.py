"""Image data: embedded, in folders, or prepared by TensorFlow Datasets; nothing is downloaded."""

from train.data.images.loading import load
from train.data.images.pipeline import evaluation_batches, train_batches
from train.data.images.source import CorruptImage, Dataset, Images, MadeImages, Source

__all__ = ["CorruptImage", "Dataset", "Images", "MadeImages", "Source", "evaluation_batches", "load", "train_batches"]
