"""The codec ``offset``: a header of fixed length before each chunk. Loaded by zarr-python where a ``zarr.json`` names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wkwdask.formats.zarr.codecs.fixed_bytes import FixedBytesCodec


@dataclass(frozen=True, kw_only=True)
class OffsetCodec(FixedBytesCodec):
    """Put ``offset`` bytes before a chunk, skip them when it is read.

    Notes
    -----
    zarr-extensions, proposal ``codecs/offset``, version 0.1.0 (commit cb35826).
    """

    name: ClassVar[str] = "offset"
    size_key: ClassVar[str] = "offset"
    literal_key: ClassVar[str] = "prefix"
