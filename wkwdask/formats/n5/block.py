"""One stored block of an N5 dataset: a header, then values with the first axis fastest and the highest byte first, compressed.

The header states the block's own lengths: blocks at the upper ends are shorter in files that Java or z5 wrote, and whole in those of tensorstore or zarr. N5
specification 4.0.0, rule 9.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError, UnsupportedError
from wkwdask.formats.n5.attributes import LARGEST_BLOCK
from wkwdask.formats.n5.compression import compress, decompress

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from wkwdask.formats.n5.compression import Compression

DEFAULT, VARLENGTH, OBJECT = 0, 1, 2
"""Modes of a block."""


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What a block says of itself."""

    mode: int
    """``DEFAULT`` or ``VARLENGTH``."""
    shape: tuple[int, ...]
    """Its lengths, x first."""
    num_values: int
    """How many values follow."""
    nbytes: int
    """Bytes of the header."""


def header_nbytes(num_axes: int, mode: int = DEFAULT) -> int:
    """Count the bytes of a header."""
    return 4 + 4 * num_axes + (4 if mode == VARLENGTH else 0)


def format_header(shape: Sequence[int], mode: int = DEFAULT) -> bytes:
    """Write the header of a block.

    Examples
    --------
    >>> format_header((1, 2, 3)).hex(" ", 4)
    '00000003 00000001 00000002 00000003'
    """
    head = struct.pack(f">HH{len(shape)}I", mode, len(shape), *shape)
    return head + struct.pack(">I", math.prod(shape)) if mode == VARLENGTH else head


def parse_header(data: bytes | memoryview, num_axes: int, source: str) -> BlockHeader:
    """Read the header of a block."""
    if len(data) < 4:
        raise TruncatedError(f"{source}: has {len(data)} bytes, expected the header of an N5 block, {header_nbytes(num_axes)} bytes")
    mode, found_axes = struct.unpack_from(">HH", data)
    if mode == OBJECT:
        raise UnsupportedError(f"{source}: byte 0: an N5 block of objects (mode 2), which is not read")
    if mode not in (DEFAULT, VARLENGTH):
        raise CorruptError(f"{source}: byte 0: mode {mode} of an N5 block, expected 0, 1 or 2")
    if found_axes != num_axes:
        raise CorruptError(f"{source}: byte 2: an N5 block of {found_axes} axes, expected {num_axes}")
    nbytes = header_nbytes(num_axes, mode)
    if len(data) < nbytes:
        raise TruncatedError(f"{source}: has {len(data)} bytes, expected the header of an N5 block, {nbytes} bytes")
    shape = struct.unpack_from(f">{num_axes}I", data, 4)
    num_values = struct.unpack_from(">I", data, nbytes - 4)[0] if mode == VARLENGTH else math.prod(shape)
    return BlockHeader(mode, shape, num_values, nbytes)


def decode_block(
    data: bytes | memoryview, dtype: np.dtype[Any], compression: Compression, source: str, *, num_axes: int, largest: Sequence[int] | None = None
) -> npt.NDArray[Any]:
    """Decode a block."""
    header = parse_header(data, num_axes, source)
    if largest is not None and any(n > most for n, most in zip(header.shape, largest, strict=True)):
        raise CorruptError(f"{source}: byte 4: an N5 block of {header.shape} values, expected at most {tuple(largest)}")
    count = math.prod(header.shape)
    if count * dtype.itemsize > LARGEST_BLOCK:
        raise CorruptError(f"{source}: byte 4: an N5 block of {header.shape} values of {dtype.itemsize} bytes, expected at most {LARGEST_BLOCK} bytes")
    if header.num_values != count:
        what = f"{header.num_values} values in an N5 block of {header.shape} voxels (varlength mode)"
        raise UnsupportedError(f"{source}: byte {header.nbytes - 4}: {what}; only one value for each is read")
    values = decompress(memoryview(data)[header.nbytes :], compression, count * dtype.itemsize, source, header.nbytes)
    return np.frombuffer(values, dtype.newbyteorder(">")).reshape(header.shape, order="F")


def encode_block(values: npt.NDArray[Any], compression: Compression, source: str) -> bytes:
    """Encode a block in default mode."""
    stored = values.astype(values.dtype.newbyteorder(">"), order="F", copy=False)
    return format_header(values.shape) + compress(stored.tobytes(order="F"), compression, values.dtype.itemsize, source)
