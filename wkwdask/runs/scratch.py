"""Voxels set aside in scratch files: pieces of chunks, which are put together to parts later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lz4.block
import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.store import files
from wkwdask.store.new_files import NewFile
from wkwdask.store.paths import dirname

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class Piece:
    """Voxels of one chunk of an array that belong to one part."""

    part: Vec3
    """Index of the part."""
    box: BoundingBox
    """Where they go."""
    channels: tuple[int, int]
    """Their channels, half-open."""
    path: str
    """The scratch file."""
    offset: int
    """First byte in it."""
    nbytes: int
    """Compressed length [bytes]."""


def set_aside(folder: str, name: str, pieces: Iterable[tuple[Vec3, BoundingBox, tuple[int, int], npt.NDArray[Any]]]) -> tuple[Piece, ...]:
    """Store pieces in one scratch file, which appears whole; doing it again changes nothing."""
    path = f"{folder}/{name}"
    files.make_folders_below(dirname(folder), folder)
    found, offset = [], 0
    with NewFile(path, flush=False) as file:
        for part, box, channels, voxels in pieces:
            values = np.asfortranarray(voxels).ravel("K").view(np.uint8)
            if not values.any():
                continue
            data = lz4.block.compress(values, store_size=True)
            file.write(data, offset)
            found.append(Piece(part, box, channels, path, offset, len(data)))
            offset += len(data)
    return tuple(found)


def read_piece(piece: Piece, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Read the voxels of a piece."""
    with files.open_stream(piece.path) as file:
        file.seek(piece.offset)
        data = file.read(piece.nbytes)
    shape = (piece.channels[1] - piece.channels[0], *piece.box.size)
    try:
        return np.frombuffer(lz4.block.decompress(data), dtype).reshape(shape, order="F")
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise CorruptError(f"{piece.path}: byte {piece.offset}: {len(data)} bytes are not the {piece.box} that were set aside: {error}") from None
