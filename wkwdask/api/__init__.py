"""The verbs that people type."""

from wkwdask.api.access import create, info, open, read, sample, to_wkw, write
from wkwdask.api.annotations import merge
from wkwdask.api.checks import check_manifest, diff, repair, verify, write_manifest
from wkwdask.api.contrast import contrast, histogram
from wkwdask.api.conversion import convert, plan_convert
from wkwdask.api.copies import copy, rm
from wkwdask.api.datasets import Dataset, create_dataset, open_dataset
from wkwdask.api.functions import apply
from wkwdask.api.labels import label_statistics
from wkwdask.api.layers import Layer, LayerMag
from wkwdask.api.pyramids import build_pyramid, plan_pyramid, upsample
from wkwdask.api.reshape import compress, rechunk
from wkwdask.api.segmentations import connected_components, remap, remove_dust, renumber

__all__ = [
    "Dataset",
    "Layer",
    "LayerMag",
    "apply",
    "build_pyramid",
    "check_manifest",
    "compress",
    "connected_components",
    "contrast",
    "convert",
    "copy",
    "create",
    "create_dataset",
    "diff",
    "histogram",
    "info",
    "label_statistics",
    "merge",
    "open",
    "open_dataset",
    "plan_convert",
    "plan_pyramid",
    "read",
    "rechunk",
    "remap",
    "remove_dust",
    "renumber",
    "repair",
    "rm",
    "sample",
    "to_wkw",
    "upsample",
    "verify",
    "write",
    "write_manifest",
]
