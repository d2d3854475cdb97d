"""Storage options of OME-NGFF images in Zarr."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wkwdask.model.options import StorageOptions, choice, number, shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class ZarrOptions(StorageOptions):
    """Storage options of an OME-NGFF array."""

    name: ClassVar[str] = "zarr"
    title: ClassVar[str] = "OME-NGFF"
    unsupported: ClassVar[tuple[str, ...]] = ("pyramid",)
    stores_any_type: ClassVar[bool] = True
    compressor: ClassVar[str] = "zstd"
    levels: ClassVar[Mapping[str, tuple[int, int, int]]] = {
        "blosc": (3, 0, 9),
        "zstd": (3, -7, 22),
        "gzip": (5, 0, 9),
    }

    chunk_shape: Vec3 | None = shape(
        (
            "A chunk [voxels]. If no storage option is given, the blocks and files of WKW become "
            "chunks and shards."
        ),
        (64, 64, 64),
    )
    shard_shape: Vec3 | bool | None = shape(
        (
            "A shard [voxels], whole chunks along each axis; {auto} chooses one of at most 512 MiB "
            "before compression (256 MiB in a bucket), {none} makes each chunk a file."
        ),
        True,
        "{auto}",
        accepts_bool=True,
    )
    compression: str | None = choice(
        "Compression of chunks; blosc is Zstandard after a byte shuffle.",
        (*levels, "raw"),
        default_doc="zstd for segmentations and bytes, else blosc",
    )
    level: int | None = number("Level of the compression.", default_doc="by compression")
    ngff: str | None = choice(
        (
            "Version of OME-NGFF: 0.6 and 0.5 are stored in Zarr 3, 0.4 in Zarr 2, which has no "
            "shards."
        ),
        ("0.6", "0.5", "0.4"),
        default_doc="that of the image, else 0.5",
    )
