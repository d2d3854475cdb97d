"""webKNOSSOS-wrap (WKW) voxel data as dask arrays: open, write, downsample, look."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Name and module; a module is imported when one of its names is first used, so that ``import wkwdask`` takes no time.
_NAMES = {
    "AlignmentError": "errors",
    "BatchError": "errors",
    "BoundingBox": "geometry.bounding_box",
    "BoundsError": "errors",
    "CorruptError": "errors",
    "Dataset": "api.datasets",
    "Diff": "verbs.diff",
    "ExistsError": "errors",
    "Fault": "model.faults",
    "FormatError": "errors",
    "IncompleteWriteError": "errors",
    "Layer": "api.layers",
    "LayerMag": "api.layers",
    "LockedError": "errors",
    "Mag": "geometry.mag",
    "ManifestReport": "verbs.manifest",
    "MissingError": "errors",
    "PyramidPlan": "verbs.estimate",
    "RepairReport": "verbs.repair",
    "ReplacedError": "errors",
    "Report": "runs.report",
    "ResumeError": "errors",
    "RmReport": "runs.report",
    "Sharding": "formats.precomputed.sharding",
    "TaskFailedError": "errors",
    "TruncatedError": "errors",
    "UnsupportedError": "errors",
    "VerifyReport": "verbs.verify",
    "WkwDaskError": "errors",
    "apply": "api.functions",
    "build_pyramid": "api.pyramids",
    "check_manifest": "api.checks",
    "choose_sharding": "formats.precomputed.choose_sharding",
    "cluster": "clusters.connect",
    "compress": "api.reshape",
    "connected_components": "api.segmentations",
    "contrast": "api.contrast",
    "convert": "api.conversion",
    "copy": "api.copies",
    "create": "api.access",
    "create_dataset": "api.datasets",
    "diff": "api.checks",
    "histogram": "api.contrast",
    "info": "api.access",
    "label_statistics": "api.labels",
    "make_demo": "viewer.demo",
    "merge": "api.annotations",
    "n5_as_zarr": "api.n5",
    "n5_store": "api.n5",
    "offset_codec": "api.codecs",
    "open": "api.access",
    "open_dataset": "api.datasets",
    "pad_codec": "api.codecs",
    "plan_convert": "api.conversion",
    "plan_pyramid": "api.pyramids",
    "preview": "viewer.preview",
    "read": "api.access",
    "rechunk": "api.reshape",
    "register_header": "formats.zarr.codecs.headers",
    "remap": "api.segmentations",
    "remove_dust": "api.segmentations",
    "remove_zarr_view": "api.zarr_views",
    "renumber": "api.segmentations",
    "repair": "api.checks",
    "rm": "api.copies",
    "sample": "api.access",
    "tiff_prefix": "formats.zarr.codecs.tiff",
    "tiff_shard_codec": "api.codecs",
    "to_n5": "api.n5",
    "to_precomputed": "api.precomputed",
    "to_wkw": "api.access",
    "to_zarr": "api.zarr_images",
    "upsample": "api.pyramids",
    "verify": "api.checks",
    "write": "api.access",
    "write_manifest": "api.checks",
    "write_zarr_view": "api.zarr_views",
    "zarr_view": "api.zarr_views",
}

__all__ = [
    "AlignmentError",
    "BatchError",
    "BoundingBox",
    "BoundsError",
    "CorruptError",
    "Dataset",
    "Diff",
    "ExistsError",
    "Fault",
    "FormatError",
    "IncompleteWriteError",
    "Layer",
    "LayerMag",
    "LockedError",
    "Mag",
    "ManifestReport",
    "MissingError",
    "PyramidPlan",
    "RepairReport",
    "ReplacedError",
    "Report",
    "ResumeError",
    "RmReport",
    "Sharding",
    "TaskFailedError",
    "TruncatedError",
    "UnsupportedError",
    "VerifyReport",
    "WkwDaskError",
    "apply",
    "build_pyramid",
    "check_manifest",
    "choose_sharding",
    "cluster",
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
    "make_demo",
    "merge",
    "n5_as_zarr",
    "n5_store",
    "offset_codec",
    "open",
    "open_dataset",
    "pad_codec",
    "plan_convert",
    "plan_pyramid",
    "preview",
    "read",
    "rechunk",
    "register_header",
    "remap",
    "remove_dust",
    "remove_zarr_view",
    "renumber",
    "repair",
    "rm",
    "sample",
    "tiff_prefix",
    "tiff_shard_codec",
    "to_n5",
    "to_precomputed",
    "to_wkw",
    "to_zarr",
    "upsample",
    "verify",
    "write",
    "write_manifest",
    "write_zarr_view",
    "zarr_view",
]

if TYPE_CHECKING:
    from wkwdask.api.access import create, info, open, read, sample, to_wkw, write
    from wkwdask.api.annotations import merge
    from wkwdask.api.checks import check_manifest, diff, repair, verify, write_manifest
    from wkwdask.api.codecs import offset_codec, pad_codec, tiff_shard_codec
    from wkwdask.api.contrast import contrast, histogram
    from wkwdask.api.conversion import convert, plan_convert
    from wkwdask.api.copies import copy, rm
    from wkwdask.api.datasets import Dataset, create_dataset, open_dataset
    from wkwdask.api.functions import apply
    from wkwdask.api.labels import label_statistics
    from wkwdask.api.layers import Layer, LayerMag
    from wkwdask.api.n5 import n5_as_zarr, n5_store, to_n5
    from wkwdask.api.precomputed import to_precomputed
    from wkwdask.api.pyramids import build_pyramid, plan_pyramid, upsample
    from wkwdask.api.reshape import compress, rechunk
    from wkwdask.api.segmentations import connected_components, remap, remove_dust, renumber
    from wkwdask.api.zarr_images import to_zarr
    from wkwdask.api.zarr_views import remove_zarr_view, write_zarr_view, zarr_view
    from wkwdask.clusters.connect import cluster
    from wkwdask.errors import (
        AlignmentError,
        BatchError,
        BoundsError,
        CorruptError,
        ExistsError,
        FormatError,
        IncompleteWriteError,
        LockedError,
        MissingError,
        ReplacedError,
        ResumeError,
        TaskFailedError,
        TruncatedError,
        UnsupportedError,
        WkwDaskError,
    )
    from wkwdask.formats.precomputed.choose_sharding import choose_sharding
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.formats.zarr.codecs.headers import register_header
    from wkwdask.formats.zarr.codecs.tiff import tiff_prefix
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.faults import Fault
    from wkwdask.runs.report import Report, RmReport
    from wkwdask.verbs.diff import Diff
    from wkwdask.verbs.estimate import PyramidPlan
    from wkwdask.verbs.manifest import ManifestReport
    from wkwdask.verbs.repair import RepairReport
    from wkwdask.verbs.verify import VerifyReport
    from wkwdask.viewer.demo import make_demo
    from wkwdask.viewer.preview import preview


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


if "xarray" in sys.modules:  # arrays that are made by hand get the accessor .wkw; whoever opens a file with xarray has it in any case
    import wkwdask.xarray.accessor  # noqa: F401
