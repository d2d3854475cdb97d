"""Complete example of a format, as another package can add it: ``toy.json`` lists the levels of an
image; a level is a folder of raw chunks."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import MissingError
from wkwdask.formats.array_images import array_image, array_level, resolved_images
from wkwdask.formats.container import ImageFolder
from wkwdask.formats.edits import LevelRemoval
from wkwdask.formats.format import ArrayFormat
from wkwdask.formats.identity import JsonIdentity, canonical_json, read_record_state
from wkwdask.formats.level_folders import LevelFolders
from wkwdask.geometry.mag import Mag
from wkwdask.model.chunk_grid import ChunkGrid, grouped_unit
from wkwdask.model.codec import RawCodec
from wkwdask.model.layout import SingleFiles
from wkwdask.model.levels import lengths_in
from wkwdask.model.naming import GridNaming
from wkwdask.model.options import StorageOptions, choice, shape
from wkwdask.model.parsing import reading
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.model.writing.target_image import Destination, NewLevels, TargetFolder
from wkwdask.store.documents import update_json
from wkwdask.store.json_record import read_record
from wkwdask.store.paths import UrlName, basename, dirname
from wkwdask.store.store import FolderStore, open_store, store_at

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_NAME, LEVEL_NAME, URL_NAME = "toy.json", "level.json", UrlName(("toy://",), ("toy",))


@dataclass(frozen=True, slots=True)
class ToyOptions(StorageOptions):
    name, title = "toy", "Toy"
    chunk_shape: tuple[int, int, int] | None = shape("Shape of a chunk [voxels].", (64, 64, 64))
    compression: str | None = choice("Compression of chunks.", ("raw", "gzip"), "raw")


@dataclass(frozen=True, slots=True)
class ToyCodec(RawCodec):
    """Raw values, optionally compressed."""

    compression: str = "raw"

    def decode(self, data, shape, source, offset=0):
        with reading(source, "chunk"):
            data = data if self.compression == "raw" else zlib.decompress(data)
        return RawCodec.decode(self, data, shape, source, offset)

    def encode(self, voxels, source):
        data = RawCodec.encode(self, voxels, source)
        return data if self.compression == "raw" else zlib.compress(data)


def toy_array(
    folder: str, mag: Mag, document: dict[str, Any], *, is_new: bool = False, **others: Any
) -> StoredArray:
    """Return the array in a folder, with its first voxel at 0, from the document of its level."""
    store = open_store(folder)
    with reading(f"{folder}/{LEVEL_NAME}", "level"):
        dtype, size, chunk = (
            np.dtype(document["dtype"]),
            tuple(document["size"]),
            tuple(document["chunk"]),
        )
        grid = ChunkGrid(
            size, chunk, chunk, grouped_unit(size, chunk, dtype.itemsize), truncates=True
        )
    identity = JsonIdentity(
        store,
        LEVEL_NAME,
        None if is_new else read_record_state(store, LEVEL_NAME),
        canonical_json(document),
    )
    codec = ToyCodec(dtype.newbyteorder("<"), "zyxc", document["compression"])
    return StoredArray(
        store,
        grid,
        GridNaming("xyz", "", ".", suffix=".raw"),
        SingleFiles(),
        codec,
        dtype,
        identity,
        mag,
        **others,
    )


@dataclass(frozen=True, slots=True)
class ToyEdit(LevelRemoval):
    """Edit of ``toy.json`` that removes levels, or adds new ones once they are published."""

    kind: ClassVar[str] = "toy"
    levels: Sequence[dict[str, Any]] = ()
    new: dict[str, Any] | None = None

    def apply(self) -> None:
        update_json(FolderStore(self.folder), FILE_NAME, self._changed, self.new)

    def _changed(self, document: dict[str, Any]) -> dict[str, Any]:
        kept = [level for level in document["levels"] if level["name"] not in self.keys]
        return {**document, "levels": sorted([*kept, *self.levels], key=lambda level: level["mag"])}


@dataclass(frozen=True, slots=True)
class ToyTarget(TargetFolder):
    """Folder of levels, existing or new."""

    prefix: ClassVar[str] = "toy://"

    def new_levels(self, specs, options, like=None, existing="error") -> NewLevels:
        is_like = isinstance(like, StoredArray) and isinstance(like.codec, ToyCodec)
        found = (
            replace(options, chunk_shape=options.chunk_shape or like.chunk_shape)
            if is_like
            else options.with_defaults()
        )
        chunk, compression = found.chunk_shape, found.compression or like.codec.compression
        folders, targets, levels = (
            tuple(f"{self.folder}/{spec.box.mag.name}" for spec in specs),
            [],
            [],
        )
        for spec, folder in zip(specs, folders, strict=True):
            document = {
                "dtype": spec.dtype.name,
                "size": [spec.num_channels, *spec.box.size],
                "chunk": [spec.num_channels, *chunk],
                "compression": compression,
            }
            array = toy_array(folder, spec.box.mag, document, is_new=True).moved(spec.box.topleft)
            targets.append(
                TargetArray(array, array.store, ((LEVEL_NAME, json.dumps(document).encode()),))
            )
            levels.append(
                {
                    "name": spec.box.mag.name,
                    "mag": list(spec.box.mag.factors),
                    "offset": list(spec.box.topleft),
                }
            )
        size = self.destination.required_voxel_size_nm or self.destination.source_voxel_size_nm
        new = {
            "category": self.destination.category or "color",
            "voxel_size_nm": None if size is None else list(size),
            "levels": [],
        }
        edit = ToyEdit(self.folder, [level["name"] for level in levels], levels, new)
        return NewLevels(
            self.folder,
            folders,
            tuple(targets),
            {"chunk": list(chunk), "compression": compression, "levels": levels},
            edit,
        )


class ToyFormat(ArrayFormat):
    """Format of folders with ``toy.json``, and of their levels."""

    name, url_name, options, edits = "toy", URL_NAME, ToyOptions, (ToyEdit,)
    level_folders = LevelFolders("one array of toy", LEVEL_NAME, r".*\.raw")
    container = ImageFolder(level_folders, (FILE_NAME,), ToyEdit)

    def recognise(self, path: str) -> bool:
        return any(map(store_at(path).is_file, (FILE_NAME, LEVEL_NAME)))

    def find(self, url):
        folder, key = URL_NAME.location(url), None
        if not store_at(folder).is_file(FILE_NAME):
            folder, key = dirname(folder), basename(folder)
        document, levels = read_record(f"{folder}/{FILE_NAME}"), []
        if document is None:
            raise MissingError(f"{folder}: no {FILE_NAME} here")
        for level in document["levels"]:
            mag, path = Mag.parse(level["mag"]), f"{folder}/{level['name']}"
            size = document["voxel_size_nm"]
            array = toy_array(
                path,
                mag,
                read_record(f"{path}/{LEVEL_NAME}"),
                lengths_nm=None if size is None else lengths_in(mag, size),
            )
            levels.append(array_level(level["name"], array, mag, tuple(level["offset"])))
        return resolved_images(
            url,
            (array_image(self.name, folder, basename(folder), levels, key, document["category"]),),
            self.container,
        )

    def target(self, destination):
        return ToyTarget(store_at(URL_NAME.location(destination.url)).real(), destination)

    def target_in(self, image, *, allow_external):
        return ToyTarget(
            image.folder,
            Destination(
                image.folder, category=image.category, source_voxel_size_nm=image.voxel_size_nm
            ),
        )


FORMAT = ToyFormat()
