"""Data: what a data set is, where it comes from, how it is split, decoded, augmented and drawn in batches."""

from rcalign.data.augment import Augmentation
from rcalign.data.batches import Batches, evaluation_batches
from rcalign.data.cache import ImageStore, open_images
from rcalign.data.source import Arrays, Dataset, ImageArray, Images, describe, load
from rcalign.data.splits import Splits, split

__all__ = [
    "Arrays",
    "Augmentation",
    "Batches",
    "Dataset",
    "ImageArray",
    "ImageStore",
    "Images",
    "Splits",
    "describe",
    "evaluation_batches",
    "load",
    "open_images",
    "split",
]
