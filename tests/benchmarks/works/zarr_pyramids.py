"""Base of works that add coarser levels to an OME-Zarr image: sharded Zarr v3, the same files for
all tools."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from .base import NUM_MAGS, Work, digest, folder_nbytes, read_mag, shared_folder

_CODECS: dict[str, dict[str, Any]] = {
    "zstd": {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
    "blosc-lz4": {
        "name": "blosc",
        "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0},
    },
}


class Pyramid(Work):
    """Work that builds coarser levels.

    Parameters
    ----------
    path : str
        The WKW mag that the voxels come from.
    folder : str
        Folder of the image.
    size : int
        Edge of the volume [voxels].
    method : str
        ``mean`` or ``mode``.
    compression : str
        ``zstd`` or ``blosc-lz4``.
    """

    kind = "zarr"

    def __init__(self, path: str, folder: str, size: int, method: str, compression: str) -> None:
        self.folder, self.size, self.method, self.compression = (
            Path(folder),
            size,
            method,
            compression,
        )
        self.chunk, self.shard = min(64, size // 8), min(256, size // 2)
        voxels = read_mag(path, size)[0]
        self.dtype, self.nbytes = voxels.dtype, voxels.nbytes
        self.source = shared_folder(folder) / f"{self.kind}-{compression}-{self.dtype.name}-{size}"
        if not self.source.is_dir():
            self._make_source(voxels)

    def _make_source(self, voxels: np.ndarray) -> None:
        """Write the finest level by zarr-python."""
        import zarr

        new = self.source.with_name(f"{self.source.name}-new")
        shutil.rmtree(new, ignore_errors=True)
        self.create(new, 0)
        zarr.open_array(str(new / "1"), mode="r+")[...] = voxels.T
        scale = [{"type": "scale", "scale": [4.0, 4.0, 4.0]}]
        axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
        image = {
            "axes": axes,
            "datasets": [{"path": "1", "coordinateTransformations": scale}],
            "name": "a",
        }
        group = {
            "zarr_format": 3,
            "node_type": "group",
            "attributes": {"ome": {"version": "0.5", "multiscales": [image]}},
        }
        (new / "zarr.json").write_text(json.dumps(group))
        new.rename(self.source)

    def create(self, folder: Path, level: int) -> str:
        """Write the document of a level, and return its path; dask writes no shard that is larger
        than the array."""
        size = self.size >> level
        codec = json.loads(json.dumps(_CODECS[self.compression]))
        if codec["name"] == "blosc":
            codec["configuration"]["typesize"] = self.dtype.itemsize
        little = (
            {"name": "bytes", "configuration": {"endian": "little"}}
            if self.dtype.itemsize > 1
            else {"name": "bytes"}
        )
        index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        inner = {
            "chunk_shape": [min(self.chunk, size)] * 3,
            "codecs": [little, codec],
            "index_codecs": index,
            "index_location": "end",
        }
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [size] * 3,
            "data_type": self.dtype.name,
            "fill_value": 0,
            "attributes": {},
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [min(self.shard, size)] * 3},
            },
            "dimension_names": ["z", "y", "x"],
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        }
        path = folder / str(1 << level)
        path.mkdir(parents=True)
        (path / "zarr.json").write_text(json.dumps(document))
        return str(path)

    def prepare(self) -> None:
        """Begin with the finest level alone, by links to its files."""
        self.put_aside()
        shutil.copytree(
            self.source,
            self.folder,
            copy_function=lambda file, copy: (shutil.copy2 if file.endswith(".json") else os.link)(
                file, copy
            ),
        )

    def put_aside(self) -> None:
        """Put aside what the last run made."""
        if self.folder.is_dir():
            aside = self.folder.with_name("aside")
            aside.mkdir(exist_ok=True)
            self.folder.rename(aside / secrets.token_hex(8))

    @property
    def levels(self) -> list[Path]:
        """The coarser levels, finest first."""
        return [self.folder / str(1 << level) for level in range(1, NUM_MAGS + 1)]

    def written(self) -> int:
        """Count the bytes of the coarser levels."""
        return folder_nbytes(self.levels)

    def digests(self) -> list[str]:
        """Hash every coarser level, as zarr-python reads it."""
        import zarr

        return [
            digest(np.asarray(zarr.open_array(str(path), mode="r")[...]).T) for path in self.levels
        ]
