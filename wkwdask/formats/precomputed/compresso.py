"""Chunks in the Compresso encoding: borders between segments as small windows, and one id for each
connected component between them. Opens no file.

The package compresso writes streams. They are decoded here, because that package trusts the header
of a damaged stream and reads beyond its buffer. Layout of a stream, after the header::

    | ids of components | distinct windows | locations: ids of border voxels or neighbours | windows, run-length encoded | index (version 1) |
"""  # noqa: E501

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.geometry.mag import vec3
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3

_HEADER = struct.Struct("<4sBB3H3BQIQB")
_MAGIC = b"cpso"
_WINDOWS, _IDS, _LOCATIONS = 1, 2, 3  # fault codes; the compiled loops return the last two
_FAULTS = {
    _WINDOWS: "has windows that do not cover it",
    _IDS: "has a number of ids that differs from its number of connected components",
    _LOCATIONS: "has borders without ids",
}
# tried in this order: a chunk with too many distinct small windows may still fit with larger ones
_WINDOW_SHAPES = ((4, 4, 1), (8, 8, 1))


def decode(data: bytes, shape: Vec3, dtype: np.dtype[Any], source: str, offset: int) -> AnyArray:
    from wkwdask.kernels.codecs import compresso_compiled

    where = f"{source}: byte {offset}"
    has_index, itemsize, stored_shape, steps, (num_ids, num_values, num_locations), connectivity = (
        _parse_header(data, where)
    )
    if stored_shape != shape or itemsize != dtype.itemsize:
        raise CorruptError(
            f"{where}: expected a compresso stream of {shape} voxels of {dtype}, found "
            f"{stored_shape} of {itemsize} bytes"
        )
    stored = np.dtype(f"<u{itemsize}")
    # one bit per voxel
    window_nbytes = next(
        nbytes for nbytes in (1, 2, 4, 8) if steps[0] * steps[1] * steps[2] <= 8 * nbytes
    )
    lengths = [num_ids * itemsize, num_values * window_nbytes, num_locations * itemsize]
    rest = len(data) - _HEADER.size - sum(lengths) - (_index_nbytes(shape) if has_index else 0)
    if rest < 0:
        raise TruncatedError(
            f"{where}: a compresso stream of {len(data)} bytes is {-rest} shorter than its header "
            "says"
        )
    window = np.dtype(f"<u{window_nbytes}")
    position = _HEADER.size
    sections = []
    for length, kind in zip(
        [*lengths, rest // window_nbytes * window_nbytes],
        (stored, window, stored, window),
        strict=True,
    ):
        # All parts become aligned uint64: numba compiles its loops once.
        sections.append(
            np.frombuffer(data, kind, length // kind.itemsize, position).astype(np.uint64)
        )
        position += length
    ids, values, locations, windows = sections
    out, is_border = np.empty(shape[::-1], np.uint64), np.empty(shape[::-1], np.uint8)
    is_covered = compresso_compiled.decode_borders(windows, values, steps, is_border)
    fault = (
        compresso_compiled.decode_ids(is_border, ids, locations, connectivity, out)
        if is_covered
        else _WINDOWS
    )
    if fault:
        raise CorruptError(f"{where}: a compresso stream of {shape} voxels {_FAULTS[fault]}")
    return out.astype(dtype, copy=False).transpose(2, 1, 0)[None]


def encode(array: AnyArray, source: str) -> bytes:
    package = import_extra("compresso", f"{source}: compresso", "precomputed")
    voxels = np.asfortranarray(array[0], array.dtype.newbyteorder("="))
    if not voxels.flags.writeable:  # the package rejects read-only memory
        voxels = voxels.copy(order="F")
    problem = ""
    for steps in _WINDOW_SHAPES:
        try:
            return bytes(package.compress(voxels, steps=steps))
        except (package.EncodeError, RuntimeError) as error:
            problem = str(error)
    raise FormatError(
        f"{source}: compresso cannot encode a chunk of {voxels.shape} voxels: {problem}"
    )


def _parse_header(data: bytes, where: str) -> tuple[bool, int, Vec3, Vec3, Vec3, int]:
    """Return has_index, itemsize, shape, window shape, (ids, distinct windows, border ids),
    connectivity."""
    if not data.startswith(_MAGIC):
        raise CorruptError(f"{where}: no compresso stream: it starts with {bytes(data[:4])!r}")
    if len(data) < _HEADER.size:
        raise TruncatedError(
            f"{where}: a compresso stream is cut off in its header, after {len(data)} bytes"
        )
    _, version, itemsize, nx, ny, nz, sx, sy, sz, *counts, connectivity = _HEADER.unpack_from(data)
    if (
        version > 1
        or itemsize not in (1, 2, 4, 8)
        or not 1 <= sx * sy * sz <= 64
        or connectivity not in (4, 6)
    ):
        found = (
            f"version {version}, {itemsize} bytes, windows of {(sx, sy, sz)}, connectivity "
            f"{connectivity}"
        )
        raise CorruptError(f"{where}: a compresso stream with an impossible header: {found}")
    return version == 1, itemsize, (nx, ny, nz), (sx, sy, sz), vec3(counts), connectivity


def _index_nbytes(shape: Vec3) -> int:
    """Return the length of the index at the end of a stream: two numbers for each z plane, which
    only partial decoding needs."""
    max_value = 2 * shape[0] * shape[1]
    width = (
        1 if max_value < 0xFF else 2 if max_value < 0xFFFF else 4 if max_value < 0xFFFFFFFF else 8
    )
    return 2 * shape[2] * width
