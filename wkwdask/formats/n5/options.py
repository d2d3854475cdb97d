"""Storage options of N5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wkwdask.model.options import StorageOptions, choice, number, shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class N5Options(StorageOptions):
    """Storage options of an N5 dataset."""

    name: ClassVar[str] = "n5"
    title: ClassVar[str] = "N5"
    unsupported: ClassVar[tuple[str, ...]] = ("category", "pyramid")
    compressor: ClassVar[str] = "gzip"
    levels: ClassVar[Mapping[str, tuple[int, int, int]]] = {
        "gzip": (-1, -1, 9),
        "zlib": (-1, -1, 9),
        "bzip2": (9, 1, 9),
        "xz": (6, 0, 9),
        "zstd": (3, 1, 22),
        "blosc": (5, 0, 9),
    }

    chunk_shape: Vec3 | None = shape("A block [voxels], which holds all channels.", (64, 64, 64))
    compression: str | None = choice(
        "Compression of blocks; zstd and blosc are extensions of N5, and need the extra zarr.",
        ("raw", *levels),
        "gzip",
    )
    level: int | None = number("Level of the compression.", default_doc="by compression")
