"""The verbs that people type."""

from wkwdask.api.access import create, info, open, read, sample, to_wkw, write
from wkwdask.api.annotations import merge
from wkwdask.api.copies import copy, rm
from wkwdask.api.functions import apply
from wkwdask.api.pyramids import build_pyramid, plan_pyramid, upsample
from wkwdask.api.reshape import compress, rechunk

__all__ = [
    "apply",
    "build_pyramid",
    "compress",
    "copy",
    "create",
    "info",
    "merge",
    "open",
    "plan_pyramid",
    "read",
    "rechunk",
    "rm",
    "sample",
    "to_wkw",
    "upsample",
    "write",
]
