"""webKNOSSOS-wrap (WKW) voxel data as dask arrays: open, write, downsample, look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Name and module; a module is imported when one of its names is first used, so that ``import wkwdask`` takes no time.
_NAMES = {
    "AlignmentError": "errors",
    "BoundingBox": "geometry.bounding_box",
    "BoundsError": "errors",
    "CorruptError": "errors",
    "ExistsError": "errors",
    "FormatError": "errors",
    "IncompleteWriteError": "errors",
    "LockedError": "errors",
    "Mag": "geometry.mag",
    "MissingError": "errors",
    "PyramidPlan": "jobs.estimate",
    "Report": "jobs.report",
    "ResumeError": "errors",
    "RmReport": "jobs.report",
    "TaskFailedError": "errors",
    "TruncatedError": "errors",
    "UnsupportedError": "errors",
    "WkwDaskError": "errors",
    "apply": "api.functions",
    "build_pyramid": "api.pyramids",
    "compress": "api.reshape",
    "copy": "api.copies",
    "create": "api.access",
    "info": "api.access",
    "make_demo": "viewer.demo",
    "merge": "api.annotations",
    "open": "api.access",
    "plan_pyramid": "api.pyramids",
    "preview": "viewer.preview",
    "read": "api.access",
    "rechunk": "api.reshape",
    "rm": "api.copies",
    "sample": "api.access",
    "to_wkw": "api.access",
    "upsample": "api.pyramids",
    "write": "api.access",
}

__all__ = [
    "AlignmentError",
    "BoundingBox",
    "BoundsError",
    "CorruptError",
    "ExistsError",
    "FormatError",
    "IncompleteWriteError",
    "LockedError",
    "Mag",
    "MissingError",
    "PyramidPlan",
    "Report",
    "ResumeError",
    "RmReport",
    "TaskFailedError",
    "TruncatedError",
    "UnsupportedError",
    "WkwDaskError",
    "apply",
    "build_pyramid",
    "compress",
    "copy",
    "create",
    "info",
    "make_demo",
    "merge",
    "open",
    "plan_pyramid",
    "preview",
    "read",
    "rechunk",
    "rm",
    "sample",
    "to_wkw",
    "upsample",
    "write",
]

if TYPE_CHECKING:
    from wkwdask.api.access import create, info, open, read, sample, to_wkw, write
    from wkwdask.api.annotations import merge
    from wkwdask.api.copies import copy, rm
    from wkwdask.api.functions import apply
    from wkwdask.api.pyramids import build_pyramid, plan_pyramid, upsample
    from wkwdask.api.reshape import compress, rechunk
    from wkwdask.errors import (
        AlignmentError,
        BoundsError,
        CorruptError,
        ExistsError,
        FormatError,
        IncompleteWriteError,
        LockedError,
        MissingError,
        ResumeError,
        TaskFailedError,
        TruncatedError,
        UnsupportedError,
        WkwDaskError,
    )
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag
    from wkwdask.jobs.estimate import PyramidPlan
    from wkwdask.jobs.report import Report, RmReport
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
