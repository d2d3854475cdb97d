"""A format of its own, as another package could add it: ``toy.json`` lists levels, each a folder of raw chunks that are named by their places."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.formats.described import Described, look
from wkwdask.formats.format import ArrayFormat, LevelRemoval
from wkwdask.formats.leveled import array_image, array_level, found_images
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.chunk_grid import ChunkGrid, grouped_unit
from wkwdask.model.codec import ChunkCodec
from wkwdask.model.layout import SingleFiles
from wkwdask.model.levels import lengths_in
from wkwdask.model.naming import GridNaming
from wkwdask.model.parsing import reading
from wkwdask.model.stored_array import StoredArray
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.paths import basename, dirname
from wkwdask.store.store import open_store
from wkwdask.store.url_name import UrlName

if TYPE_CHECKING:
    from pathlib import Path

    from wkwdask.model.image import Found

FILE_NAME, LEVEL_NAME = "toy.json", "level.json"
NAMING = GridNaming("xyz", "", ".", suffix=".raw")
URL_NAME = UrlName(("toy://",), ("toy",))


@dataclass(frozen=True, slots=True)
class RawCodec(ChunkCodec):
    """Values with the channel fastest, then x, in little-endian order."""

    dtype: np.dtype[Any]

    def largest_nbytes(self, shape):
        return int(np.prod(shape)) * self.dtype.itemsize

    def decode(self, data, shape, source, offset=0):
        if len(data) < self.largest_nbytes(shape):
            raise TruncatedError(f"{source}: expected {self.largest_nbytes(shape)} bytes, found {len(data)}")
        return np.frombuffer(data, self.dtype.newbyteorder("<"), int(np.prod(shape))).reshape(shape, order="F")

    def encode(self, voxels, source):
        return voxels.astype(self.dtype.newbyteorder("<")).tobytes(order="F")


@dataclass(frozen=True, slots=True)
class ToyDescription(Described):
    """A level, and what its ``level.json`` says."""

    text: str

    @property
    def token(self):
        return ("toy", self.text, None if self.opened is None else self.opened.folder)

    def is_still_described(self):
        return json.dumps(_read(self.path)) == self.text


def _read(path: str) -> dict[str, Any]:
    try:
        return json.loads(files.read_bytes(path))
    except ValueError as error:
        raise CorruptError(f"{path}: {error}") from None


def toy_array(folder: str, mag: Mag, voxel_size=None) -> StoredArray:
    """Describe the array in a folder, which starts at voxel 0."""
    store, said = open_store(folder), _read(f"{folder}/{LEVEL_NAME}")
    with reading(f"{folder}/{LEVEL_NAME}", "level"):
        dtype, size, chunk = np.dtype(said["dtype"]), tuple(said["size"]), tuple(said["chunk"])
        grid = ChunkGrid(size, chunk, chunk, grouped_unit(size, chunk, dtype.itemsize), truncates=True)
    identity = ToyDescription(store, LEVEL_NAME, look(store, LEVEL_NAME), json.dumps(said))
    lengths = None if voxel_size is None else lengths_in(mag, voxel_size)
    return StoredArray(store, grid, NAMING, SingleFiles(), RawCodec(dtype), dtype, identity, mag, lengths_nm=lengths)


class ToyRemoval(LevelRemoval):
    """Levels that ``toy.json`` is to forget."""

    kind = "removal of toy levels"

    def apply(self):
        path = f"{self.folder}/{FILE_NAME}"
        said = _read(path)
        publish_bytes(path, json.dumps({**said, "levels": [level for level in said["levels"] if level["name"] not in self.keys]}).encode())


class ToyFormat(ArrayFormat):
    """A folder with ``toy.json``, or one of its levels."""

    name = "toy"
    url_name = URL_NAME
    edits = (ToyRemoval,)
    removal = ToyRemoval
    image_files = (FILE_NAME,)

    def recognise(self, path: str) -> bool:
        return files.isfile(f"{path}/{FILE_NAME}") or files.isfile(f"{path}/{LEVEL_NAME}")

    def find(self, url, chunk_size=None) -> Found:
        folder, key = URL_NAME.location(url), None
        if not files.isfile(f"{folder}/{FILE_NAME}"):
            folder, key = dirname(folder), basename(folder)
        said = _read(f"{folder}/{FILE_NAME}")
        levels = []
        for level in said["levels"]:
            mag = Mag.parse(level["mag"])
            levels.append(array_level(level["name"], toy_array(f"{folder}/{level['name']}", mag, said["voxel_size_nm"]), mag, tuple(level["offset"])))
        return found_images(url, (array_image(self.name, folder, basename(folder), levels, key, said["category"]),))

    def is_level_folder(self, folder: str) -> bool:
        names = (name for name in files.listdir(folder) if not name.startswith("."))
        return self.record_of(folder) is not None and all(name == LEVEL_NAME or name.endswith(".raw") for name in names)

    def record_of(self, folder: str) -> str | None:
        return f"{folder}/{LEVEL_NAME}" if files.isfile(f"{folder}/{LEVEL_NAME}") else None


FORMAT = ToyFormat()


def save_toy(folder: Path, levels: dict[str, tuple[Mag, tuple[int, int, int], np.ndarray]], category="color", voxel_size=(4.0, 4.0, 40.0), chunk=(8, 16, 8)):
    """Write arrays (c, x, y, z) by numpy alone; each level has a mag and an offset."""
    listed = [{"name": name, "mag": list(mag.factors), "offset": list(offset)} for name, (mag, offset, _) in levels.items()]
    folder.mkdir()
    (folder / FILE_NAME).write_text(json.dumps({"category": category, "voxel_size_nm": voxel_size, "levels": listed}))
    for name, (_, _, array) in levels.items():
        (folder / name).mkdir()
        said = {"dtype": array.dtype.name, "size": array.shape, "chunk": (len(array), *chunk)}
        (folder / name / LEVEL_NAME).write_text(json.dumps(said))
        for x, y, z in product(*(range(-(-n // edge)) for n, edge in zip(array.shape[1:], chunk, strict=True))):
            low, high = np.array((x, y, z)) * chunk, np.array((x + 1, y + 1, z + 1)) * chunk
            part = array[:, low[0] : high[0], low[1] : high[1], low[2] : high[2]]
            if part.any():
                (folder / name / f"{x}.{y}.{z}.raw").write_bytes(RawCodec(array.dtype).encode(part, ""))


def box_of(mag: Mag, offset: tuple[int, int, int], array: np.ndarray) -> BoundingBox:
    """Give where a level lies."""
    return BoundingBox(offset, array.shape[1:], mag)
