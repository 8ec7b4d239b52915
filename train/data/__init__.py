"""Images to train on: embedded, in folders, or prepared by TensorFlow Datasets; nothing is ever downloaded."""

from train.data.load import load
from train.data.pipeline import evaluation_batches, train_batches
from train.data.source import CorruptImage, Dataset, Images, Source

__all__ = ["CorruptImage", "Dataset", "Images", "Source", "evaluation_batches", "load", "train_batches"]
