"""The verbs that people type."""

from wkwdask.api.access import info, open, read, sample, to_wkw, write
from wkwdask.api.conversion import convert
from wkwdask.api.pyramids import build_pyramid, plan_pyramid, upsample
from wkwdask.api.reshape import compress, rechunk

__all__ = ["build_pyramid", "compress", "convert", "info", "open", "plan_pyramid", "read", "rechunk", "sample", "to_wkw", "upsample", "write"]
