"""Shared by works on Neuroglancer precomputed volumes: the voxels, their storage, and the volume
that all tools read."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import NUM_MAGS, Work, digest, folder_nbytes, read_mag, shared_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

RESOLUTION = (16, 16, 16)
SHARD_CHUNKS = 64
"""Chunks of a shard: 4 along each axis."""


def voxels_of(path: str, size: int) -> np.ndarray:
    """Read a mag, labels as uint64, shape (x, y, z), in Fortran order."""
    voxels = read_mag(path, size)[0]
    return voxels if voxels.dtype == np.uint8 else np.asfortranarray(voxels, np.uint64)


def edge_of_chunks(size: int) -> int:
    """Return the edge of a chunk [voxels]: 64, less in a volume that is small."""
    return min(64, size // 8)


def info_of(
    size: int, dtype: np.dtype, *, sharded: bool, level: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a volume and one of its scales, in the words of the format: images raw,
    segmentations compressed_segmentation.

    Shards have streams of gzip in them; chunks that are files are not compressed.
    """
    is_image = dtype.itemsize == 1
    edge = edge_of_chunks(size)
    scale: dict[str, Any] = {
        "key": "_".join(str(length << level) for length in RESOLUTION),
        "resolution": [length << level for length in RESOLUTION],
        "size": [size >> level] * 3,
        "voxel_offset": [0, 0, 0],
        "chunk_sizes": [[edge] * 3],
        "encoding": "raw" if is_image else "compressed_segmentation",
    }
    if not is_image:
        scale["compressed_segmentation_block_size"] = [8, 8, 8]
    if sharded:
        bits = 3 * max(0, (scale["size"][0] // edge - 1).bit_length())
        within = min(bits, SHARD_CHUNKS.bit_length() - 1)
        encodings = {"minishard_index_encoding": "gzip", "data_encoding": "gzip"}
        numbers = {"preshift_bits": within, "minishard_bits": 0, "shard_bits": bits - within}
        scale["sharding"] = {
            "@type": "neuroglancer_uint64_sharded_v1",
            "hash": "identity",
            **numbers,
            **encodings,
        }
    return {
        "type": "image" if is_image else "segmentation",
        "data_type": dtype.name,
        "num_channels": 1,
    }, scale


def shard_boxes(size: int) -> Iterator[tuple[slice, slice, slice]]:
    """Go through the boxes of shards of a volume."""
    step = min(size, 4 * edge_of_chunks(size))
    for at in np.ndindex(*(size // step,) * 3):
        x, y, z = (slice(n * step, (n + 1) * step) for n in at)
        yield x, y, z


class Written(Work):
    """Work that writes a volume, or a scale of one, in a separate folder.

    Parameters
    ----------
    path : str
        The WKW mag that the voxels come from.
    folder : str
        Folder of the volume.
    size : int
        Edge of the volume [voxels].
    sharded : bool
        Whether chunks are put into shards.
    """

    def __init__(self, path: str, folder: str, size: int, sharded: bool = False) -> None:
        self.path, self.folder, self.size, self.sharded = path, Path(folder), size, sharded
        self.voxels = voxels_of(path, size)
        self.dtype = self.voxels.dtype
        self.nbytes = self.voxels.nbytes

    def prepare(self) -> None:
        """Put aside what the last run made, until the row is over: for a while after many files
        were removed, ext4 makes new ones slowly."""
        if self.folder.is_dir():
            aside = self.folder.with_name("aside")
            aside.mkdir(exist_ok=True)
            self.folder.rename(aside / secrets.token_hex(8))

    def written(self) -> int:
        """Count the bytes of all files."""
        return folder_nbytes([self.folder])

    def digests(self) -> list[str]:
        """Hash the voxels that were written, as another tool reads them."""
        return [digest(read_scale(self.folder, 0))]


class Pyramid(Written):
    """Work that adds coarser scales to an existing volume: the same files for all tools, written
    once by :meth:`make_source`."""

    def __init__(
        self, path: str, folder: str, size: int, sharded: bool = False, method: str = "mean"
    ) -> None:
        super().__init__(path, folder, size, sharded)
        self.method = method
        self.source = (
            shared_folder(folder) / f"{'sharded' if sharded else 'files'}-{self.dtype.name}-{size}"
        )
        if not self.source.is_dir():
            self.make_source()
        del self.voxels
        self.record = json.loads((self.source / "info").read_text())

    def make_source(self) -> None:
        """Write the volume of one scale."""
        import wkwdask

        new = self.source.with_name(f"{self.source.name}-new")
        shutil.rmtree(new, ignore_errors=True)
        edge = edge_of_chunks(self.size)
        wkwdask.to_precomputed(
            self.voxels,
            new,
            shard_shape=ours(self.size, self.dtype, sharded=self.sharded),
            chunk_shape=(edge,) * 3,
            voxel_size=RESOLUTION,
        )
        new.rename(self.source)

    def prepare(self) -> None:
        """Begin with the source alone, by links to its files."""
        super().prepare()
        shutil.copytree(
            self.source,
            self.folder,
            copy_function=lambda file, copy: (
                shutil.copy2 if Path(file).name in _RECORDS else os.link
            )(file, copy),
        )

    def written(self) -> int:
        """Count the bytes of the coarser scales."""
        key = self.record["scales"][0]["key"]
        return folder_nbytes(
            [path for path in self.folder.iterdir() if path.is_dir() and path.name != key]
        )

    def digests(self) -> list[str]:
        """Hash every coarser scale."""
        scales = json.loads((self.folder / "info").read_text())["scales"]
        return [
            digest(read_scale(self.folder, number))
            for number in range(1, min(len(scales), NUM_MAGS + 1))
        ]


_RECORDS = ("info", "provenance")


def ours(size: int, dtype: np.dtype, *, sharded: bool) -> Any:
    """Return the sharding of all tools as our functions take it."""
    from wkwdask import Sharding

    _, scale = info_of(size, dtype, sharded=sharded)
    return (
        Sharding(**{name: value for name, value in scale["sharding"].items() if name != "@type"})
        if sharded
        else False
    )


def read_scale(folder: Path, number: int) -> np.ndarray:
    """Read a scale: by cloud-volume, which finds files of any ending, else by wkwdask."""
    try:
        from cloudvolume import CloudVolume
    except ImportError:
        import wkwdask

        return wkwdask.open(f"precomputed://{folder}", mag=1 << number).compute()[0]
    return np.asarray(
        CloudVolume(f"file://{folder}", mip=number, progress=False, fill_missing=True)[:, :, :]
    )[..., 0]
