"""Storage options of Neuroglancer precomputed volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wkwdask.model.options import StorageOptions, choice, flag, number, shape

if TYPE_CHECKING:
    from wkwdask.formats.precomputed.sharding import Sharding
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class PrecomputedOptions(StorageOptions):
    """Storage of a scale of a Neuroglancer precomputed volume."""

    name: ClassVar[str] = "precomputed"
    title: ClassVar[str] = "Neuroglancer precomputed"

    chunk_shape: Vec3 | None = shape("A chunk [voxels].", (64, 64, 64))
    shard_shape: Vec3 | bool | Sharding | None = shape(
        (
            "A shard [voxels], of a shape that the format allows for the volume; {auto} chooses "
            "about 1 GiB before compression (256 MiB in a bucket, where it is the default), {none} "
            "makes each chunk a file."
        ),
        False,
        "{none}",
        accepts_bool=True,
    )
    encoding: str | None = choice(
        "Encoding of chunks.",
        ("raw", "compressed_segmentation", "compresso", "jpeg", "png", "jxl"),
        default_doc="compressed_segmentation for segmentations of uint32 and uint64, else raw",
    )
    quality: int | None = number("Quality of jpeg and jxl; jxl without it is lossless.", (0, 100))
    compression: str | None = choice(
        'Compression of encoded chunks, and of the indexes of shards. "gzip" of unsharded chunks '
        "appends .gz to file names: cloud-volume can read them, and "
        "Neuroglancer behind a server that supports such names, but tensorstore cannot.",
        ("gzip", "raw"),
        default_doc="gzip in shards, except for images; raw for unsharded chunks",
    )
    force: bool = flag("Allow a lossy encoding of a segmentation, which changes its ids.")
