"""Base of works that read parts of one stored array, which each tool opens once: the same files for
all tools."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from .base import BoxLoop, boxes, read_mag, shared_folder, slices

CHUNK, SHARD = 64, 256


class Parts(BoxLoop):
    """Parts of an array, one after the other.

    Parameters
    ----------
    path : str
        The WKW mag that the voxels come from; segmentations become uint64 in precomputed volumes.
    folder : str
        The unit's own folder, beside that of the array.
    size : int
        Edge of the volume [voxels].
    kind : str
        ``zarr``, ``n5`` or ``precomputed``.
    compression : str
        ``zstd``, ``blosc`` or ``gzip``; precomputed volumes choose by the type of voxels.
    sharded : bool
        Whether a file contains many chunks.
    part : str
        ``whole``, ``box32``, ``box64``, or ``xy`` for slices.
    count : int
        Number of boxes or slices.
    """

    def __init__(
        self,
        path: str,
        folder: str,
        size: int,
        kind: str,
        compression: str,
        sharded: bool,
        part: str,
        count: int,
    ) -> None:
        self.size, self.kind, self.compression, self.sharded = size, kind, compression, sharded
        self.chunk, self.shard = min(CHUNK, size // 4), min(SHARD, size // 2)
        layout = "shards" if sharded else "files"
        self.source = shared_folder(folder) / (
            f"parts-{kind}-{compression}-{layout}-{Path(path).parent.name}-{size}"
        )
        if not self.source.is_dir():
            new = self.source.with_name(f"{self.source.name}-new")
            shutil.rmtree(new, ignore_errors=True)
            self._write(read_mag(path, size)[0], new)
            new.rename(self.source)
        if part == "whole":
            self.boxes = [((0, 0, 0), (size, size, size))]
        elif part.startswith("box"):
            edge = min(int(part.removeprefix("box")), size)
            self.boxes = boxes(size, edge, count)
        else:
            self.boxes = slices(size, part, count)
        self.open()
        self.nbytes = self.count_nbytes()

    def _write(self, voxels: np.ndarray, folder: Path) -> None:
        import wkwdask

        options: dict[str, Any] = {"chunk_shape": (self.chunk,) * 3, "voxel_size": (4, 4, 4)}
        if self.kind == "zarr":
            _write_zarr(
                voxels, folder / "0", self.chunk, self.sharded and self.shard, self.compression
            )
        elif self.kind == "n5":
            wkwdask.to_n5(voxels, folder / "s0", compression=self.compression, **options)
        else:
            is_image = voxels.dtype.itemsize == 1
            bits = 3 * (self.size // self.chunk - 1).bit_length()
            within = min(bits, 6)
            sharding = wkwdask.Sharding(
                preshift_bits=within,
                minishard_bits=0,
                shard_bits=bits - within,
                data_encoding="raw",
                minishard_index_encoding="raw",
            )
            wkwdask.to_precomputed(
                voxels if is_image else np.asfortranarray(voxels, np.uint64),
                folder,
                shard_shape=sharding if self.sharded else False,
                **options,
            )

    @property
    def level(self) -> Path:
        """Folder of the array, or of the precomputed volume."""
        return self.source / {"zarr": "0", "n5": "s0", "precomputed": ""}[self.kind]

    def open(self) -> None:
        """Open the array."""
        raise NotImplementedError


def _write_zarr(
    voxels: np.ndarray, folder: Path, chunk: int, shard: int | bool, compression: str
) -> None:
    import zarr
    from zarr.codecs import BloscCodec, ZstdCodec

    codec = (
        ZstdCodec(level=3)
        if compression == "zstd"
        else BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=voxels.dtype.itemsize)
    )
    array = zarr.create_array(
        str(folder),
        shape=voxels.shape,
        dtype=voxels.dtype,
        chunks=(chunk,) * 3,
        shards=(shard,) * 3 if shard else None,
        compressors=codec,
        dimension_names=list("zyx"),
    )
    array[...] = voxels.T
