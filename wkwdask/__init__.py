"""Process webKNOSSOS-wrap (WKW), Neuroglancer precomputed, N5 and OME-NGFF voxel volumes with dask.

Public names are listed in ``__all__``; each is loaded on first use. Functions are defined in
``wkwdask.api``, one module per topic. Below it, ``verbs``, ``ids`` and ``meshing`` plan the work,
``runs`` and ``graphs`` execute it, ``formats`` reads and writes each format, and ``geometry`` and
``kernels`` do the arithmetic. A reader starts at :mod:`wkwdask.api.access`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Public names by module. A module is imported when one of its names is first used, which keeps
# ``import wkwdask`` fast.
_MODULES = {
    "api.access": "info open read read_many sample",
    "api.checks": "check_manifest diff repair verify write_manifest",
    "api.codecs": "offset_codec pad_codec tiff_shard_codec",
    "api.conversion": "convert plan_convert",
    "api.copies": "compress copy rechunk rm",
    "api.datasets": "Dataset create_dataset open_dataset",
    "api.apply": "apply",
    "api.layers": "Layer LayerMag",
    "api.meshes": "meshes",
    "api.pyramids": "build_pyramid plan_pyramid upsample",
    "api.reader": "Reader reader",
    "api.segment": "segment",
    "api.segmentations": "connected_components merge remap remove_dust renumber",
    "api.statistics": "contrast histogram label_statistics",
    "api.to_n5": "to_n5",
    "api.to_precomputed": "to_precomputed",
    "api.to_wkw": "to_wkw",
    "api.to_zarr": "to_zarr",
    "api.writing": "create save write",
    "api.zarr_views": "n5_as_zarr n5_store remove_zarr_view write_zarr_view zarr_view",
    "clusters.connect": "cluster",
    "errors": "AlignmentError BatchError BoundsError CorruptError ExistsError FormatError IncompleteWriteError LockedError MissingError "  # noqa: E501
    "ReplacedError ResumeError SpaceError TaskFailedError TruncatedError UnsupportedError "
    "WkwDaskError",
    "formats.precomputed.sharding": "Sharding choose_sharding",
    "formats.zarr.codecs.headers": "register_header",
    "formats.zarr.codecs.tiff": "tiff_prefix",
    "geometry.bounding_box": "BoundingBox",
    "geometry.mag": "Mag",
    "ids.segment": "SegmentPlan",
    "meshing.plan": "MeshPlan",
    "model.faults": "Fault",
    "runs.report": "Report RmReport",
    "streams.block_cache": "set_block_cache",
    "verbs.diff": "Diff",
    "verbs.estimate": "PyramidPlan",
    "verbs.manifest": "ManifestReport",
    "runs.cleaning": "clean",
    "verbs.repair": "RepairReport",
    "verbs.verify": "VerifyReport",
    "viewer.demo": "make_demo",
    "viewer.preview": "preview",
    "viewer.view": "View view",
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names.split()}

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
    "MeshPlan",
    "MissingError",
    "PyramidPlan",
    "Reader",
    "RepairReport",
    "ReplacedError",
    "Report",
    "ResumeError",
    "RmReport",
    "SegmentPlan",
    "Sharding",
    "SpaceError",
    "TaskFailedError",
    "TruncatedError",
    "UnsupportedError",
    "VerifyReport",
    "View",
    "WkwDaskError",
    "apply",
    "build_pyramid",
    "check_manifest",
    "choose_sharding",
    "clean",
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
    "meshes",
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
    "read_many",
    "reader",
    "rechunk",
    "register_header",
    "remap",
    "remove_dust",
    "remove_zarr_view",
    "renumber",
    "repair",
    "rm",
    "sample",
    "save",
    "segment",
    "set_block_cache",
    "tiff_prefix",
    "tiff_shard_codec",
    "to_n5",
    "to_precomputed",
    "to_wkw",
    "to_zarr",
    "upsample",
    "verify",
    "view",
    "write",
    "write_manifest",
    "write_zarr_view",
    "zarr_view",
]

if TYPE_CHECKING:
    from wkwdask.api.access import info, open, read, read_many, sample
    from wkwdask.api.apply import apply
    from wkwdask.api.checks import check_manifest, diff, repair, verify, write_manifest
    from wkwdask.api.codecs import offset_codec, pad_codec, tiff_shard_codec
    from wkwdask.api.conversion import convert, plan_convert
    from wkwdask.api.copies import compress, copy, rechunk, rm
    from wkwdask.api.datasets import Dataset, create_dataset, open_dataset
    from wkwdask.api.layers import Layer, LayerMag
    from wkwdask.api.meshes import meshes
    from wkwdask.api.pyramids import build_pyramid, plan_pyramid, upsample
    from wkwdask.api.reader import Reader, reader
    from wkwdask.api.segment import segment
    from wkwdask.api.segmentations import connected_components, merge, remap, remove_dust, renumber
    from wkwdask.api.statistics import contrast, histogram, label_statistics
    from wkwdask.api.to_n5 import to_n5
    from wkwdask.api.to_precomputed import to_precomputed
    from wkwdask.api.to_wkw import to_wkw
    from wkwdask.api.to_zarr import to_zarr
    from wkwdask.api.writing import create, save, write
    from wkwdask.api.zarr_views import (
        n5_as_zarr,
        n5_store,
        remove_zarr_view,
        write_zarr_view,
        zarr_view,
    )
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
        SpaceError,
        TaskFailedError,
        TruncatedError,
        UnsupportedError,
        WkwDaskError,
    )
    from wkwdask.formats.precomputed.sharding import Sharding, choose_sharding
    from wkwdask.formats.zarr.codecs.headers import register_header
    from wkwdask.formats.zarr.codecs.tiff import tiff_prefix
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.ids.segment import SegmentPlan
    from wkwdask.meshing.plan import MeshPlan
    from wkwdask.model.faults import Fault
    from wkwdask.runs.cleaning import clean
    from wkwdask.runs.report import Report, RmReport
    from wkwdask.streams.block_cache import set_block_cache
    from wkwdask.verbs.diff import Diff
    from wkwdask.verbs.estimate import PyramidPlan
    from wkwdask.verbs.manifest import ManifestReport
    from wkwdask.verbs.repair import RepairReport
    from wkwdask.verbs.verify import VerifyReport
    from wkwdask.viewer.demo import make_demo
    from wkwdask.viewer.preview import preview
    from wkwdask.viewer.view import View, view


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})


# Register the accessor .wkw for arrays built in memory. xarray's engines register it too, so that
# opened files have it in any import order.
if "xarray" in sys.modules:
    import wkwdask.xarray.accessor  # noqa: F401
