"""Base of works on the arrays of zarr_benchmarks (zarrs): uint16, read whole, or read and written
again part by part with the same chunks and codecs."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from .base import Work, digest, folder_nbytes, read_mag, shared_folder

_ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def document(size: int, form: str) -> dict[str, Any]:
    """Describe an array: chunks of 256^3, ``raw`` or ``zstd``, or shards of these with chunks of
    64^3."""
    edge, codecs = min(256, size // 2), [_LITTLE] if form == "raw" else [_LITTLE, _ZSTD]
    if form == "sharded":
        inner = {
            "chunk_shape": [edge // 4] * 3,
            "codecs": codecs,
            "index_codecs": [_LITTLE, {"name": "crc32c"}],
            "index_location": "end",
        }
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [size] * 3,
        "data_type": "uint16",
        "fill_value": 0,
        "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [edge] * 3}},
        "dimension_names": ["z", "y", "x"],
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": codecs,
    }


class PublicArray(Work):
    """Work on one of the arrays.

    Parameters
    ----------
    path : str
        The WKW mag that the voxels come from: EM, widened to uint16.
    folder : str
        Folder of the array that a round trip writes.
    size : int
        Edge of the array [voxels].
    form : str
        ``raw``, ``zstd`` or ``sharded``.
    round_trip : bool
        Whether it is written again; else it is read into memory.
    """

    _result: Any = None

    def __init__(self, path: str, folder: str, size: int, form: str, round_trip: bool) -> None:
        self.size, self.form, self.round_trip = size, form, round_trip
        self.target = Path(folder)
        self.source = shared_folder(folder) / f"public-{form}-{size}"
        self.nbytes = size**3 * 2
        if not self.source.is_dir():
            import zarr

            new = self._described(self.source.with_name(f"{self.source.name}-new"))
            array = zarr.open_array(str(new), mode="r+")
            array[...] = (read_mag(path, size)[0].astype(np.uint16) * 257).T
            new.rename(self.source)
        self.start()

    def _described(self, folder: Path) -> Path:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "zarr.json").write_text(json.dumps(document(self.size, self.form)))
        return folder

    def start(self) -> None:
        """Configure the tool."""

    def prepare(self) -> None:
        """Forget what the last run read, and describe the array that is written."""
        self._result = None
        if self.round_trip:
            self._described(self.target)

    def open(self, folder: Path, mode: str) -> Any:
        """Open an array that can be indexed."""
        raise NotImplementedError

    def read(self, array: Any, box: Any) -> Any:
        """Read a box, in the order z, y, x."""
        return array[box]

    def write(self, array: Any, box: Any, voxels: Any) -> None:
        """Write a box."""
        array[box] = voxels

    def run(self) -> None:
        """Read all, or read and write one file after the other."""
        source = self.open(self.source, "r")
        if not self.round_trip:
            self._result = self.read(source, (slice(0, self.size),) * 3)
            return
        target, edge = self.open(self.target, "r+"), min(256, self.size // 2)
        for corner in product(range(0, self.size, edge), repeat=3):
            box = tuple(slice(n, n + edge) for n in corner)
            self.write(target, box, self.read(source, box))

    def written(self) -> int:
        """Count the bytes of the files of a round trip."""
        return folder_nbytes([self.target]) if self.round_trip else 0

    def digests(self) -> list[str]:
        """Hash what was read or written."""
        if not self.round_trip:
            return [digest(np.asarray(self._result).T)]
        import zarr

        return [digest(zarr.open_array(str(self.target), mode="r")[...].T)]
