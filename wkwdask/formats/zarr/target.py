"""Targets of writes: the group of an OME-NGFF image, its existing arrays, and the encoding of new ones."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wkwdask.errors import ExistsError, FormatError, UnsupportedError
from wkwdask.formats.wkw.folder import contains_wkw
from wkwdask.formats.zarr.array import zarr_array
from wkwdask.formats.zarr.codec import SHUFFLES, ZarrCodec
from wkwdask.formats.zarr.documents import FILE_NAME, array_document, array_record, format_document, new_axes, raw_codecs, zarr_shape
from wkwdask.formats.zarr.layer import read_node
from wkwdask.formats.zarr.ngff import DEFAULT_VERSION, LABELS, VERSIONS, has_systems, is_written, multiscale, pyramid_level, rgb_range, scale_of, zarr_format_of
from wkwdask.formats.zarr.ngff_edit import ArrayEdit, NgffEdit, read_attributes, read_image
from wkwdask.geometry.mag import Mag
from wkwdask.model.stored_array import StoredArray
from wkwdask.model.target_array import TargetArray
from wkwdask.model.target_image import NewLevels, TargetFolder
from wkwdask.model.voxel_type import guess_category
from wkwdask.plans.chunks import chunks_per_shard, default_chunks_per_shard
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, is_remote, local_path
from wkwdask.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from wkwdask.formats.zarr.ngff import PyramidLevel
    from wkwdask.formats.zarr.options import ZarrOptions
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.levels import Lengths
    from wkwdask.model.target_image import Destination, LevelSpec
    from wkwdask.model.volume import Volume


_BLOSC = ("zstd", 1)  # Zstandard after a byte shuffle


@dataclass(frozen=True, slots=True)
class ArrayEncoding:
    """Encoding of a new array, and its documents."""

    dtype: np.dtype[Any]
    num_channels: int
    """Values per voxel; each chunk holds all channels."""
    chunk_shape: Vec3
    compression: str
    level: int
    shard_cells: Vec3 = (1, 1, 1)
    """Chunks along x, y, z that one task writes, powers of two: a shard, or a group of files."""
    is_sharded: bool = False
    version: int = 3
    blosc: tuple[str, int] = _BLOSC
    """Compressor inside Blosc, and its shuffle as a number."""

    @property
    def shard_shape(self) -> Vec3:
        """Voxels along x, y, z that one task writes."""
        x, y, z = (n * edge for n, edge in zip(self.shard_cells, self.chunk_shape, strict=True))
        return x, y, z

    def document(self, shape: Sequence[int], attributes: dict[str, Any]) -> dict[str, Any]:
        codecs, outer = raw_codecs(self.dtype), self.chunk_shape
        if self.compression != "raw":
            settings = self._settings({number: name for name, number in SHUFFLES.items()}[self.blosc[1]])
            more = {"blosc": {"typesize": self.dtype.itemsize, **settings}, "zstd": {**settings, "checksum": False}}
            codecs.append({"name": self.compression, "configuration": more.get(self.compression, settings)})
        if self.is_sharded:
            index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
            inner = {"chunk_shape": zarr_shape(self.num_channels, outer), "codecs": codecs, "index_codecs": index, "index_location": "end"}
            codecs, outer = [{"name": "sharding_indexed", "configuration": inner}], self.shard_shape
        return array_document(shape, self.num_channels, self.dtype, outer, codecs, attributes)

    def document_v2(self, shape: Sequence[int]) -> dict[str, Any]:
        compressor = None if self.compression == "raw" else {"id": self.compression, **self._settings(self.blosc[1])}
        return {
            "zarr_format": 2, "shape": zarr_shape(self.num_channels, shape), "chunks": zarr_shape(self.num_channels, self.chunk_shape),
            "dtype": self.dtype.newbyteorder("<").str, "compressor": compressor,
            "fill_value": 0.0 if self.dtype.kind == "f" else 0, "order": "C", "filters": None, "dimension_separator": "/",
        }  # fmt: skip

    def _settings(self, shuffle: str | int) -> dict[str, Any]:
        """Return the settings of the compressor; version 3 names the shuffle of Blosc, version 2 numbers it."""
        return {"cname": self.blosc[0], "clevel": self.level, "shuffle": shuffle, "blocksize": 0} if self.compression == "blosc" else {"level": self.level}


PREFIX = "zarr://"
_SUFFIX = ".ome.zarr"


@dataclass(frozen=True, slots=True)
class NgffTarget(TargetFolder):
    """Local group of an image, existing or new; implements :class:`wkwdask.model.target_image.TargetImage`."""

    prefix: ClassVar[str] = PREFIX
    image: dict[str, Any] | None
    """Existing entry of ``multiscales``; None for a new image."""
    version: str | None

    def new_levels(self, specs: Sequence[LevelSpec], options: ZarrOptions, like: Volume | None = None, existing: str = "error") -> NewLevels:
        del existing
        if self.destination.category not in (None, "color", "segmentation"):
            raise ValueError(f'category must be "color" or "segmentation", got {self.destination.category!r}')
        sizes = self._voxel_sizes()
        # An explicit voxel size comes first, so that a mismatch with the existing image is reported.
        size = self.destination.required_voxel_size_nm or next(filter(None, sizes.values()), None) or self.destination.source_voxel_size_nm
        if size is None:
            raise ValueError("voxel_size= is needed for a new image: the edge lengths of a voxel of mag 1 in nanometres, such as (4, 4, 40)")
        version = self._version(options)
        first = specs[0]
        dtype = _checked_dtype(first.dtype)
        is_label = (self.destination.category or guess_category(dtype, first.num_channels)) == "segmentation"
        levels = [pyramid_level(spec.box.mag.name, spec.box.mag, spec.box.topleft, size) for spec in specs]
        folders = tuple(f"{self.folder}/{spec.box.mag.name}" for spec in specs)
        blosc = _blosc_of(like) if options.compression is None else _BLOSC
        options = _with_defaults_from(options, like)
        encodings = [replace(_choose_encoding(spec, options, version, is_label=is_label), blosc=blosc) for spec in specs]
        kept = [_attributes_in_place(folder, spec, like) for folder, spec in zip(folders, specs, strict=True)]
        targets = tuple(map(_target_array, folders, specs, encodings, kept))
        edit = self._edit(first, levels, version, is_label=is_label)
        self._check_voxel_size(size, sizes, {mag.name for mag in (*self.destination.all_mags, *(spec.box.mag for spec in specs))})
        array_settings = list(map(_journal_settings, specs, encodings))
        settings = {"version": version, "voxel_size": list(size), "label": is_label, "dtype": dtype.name, "channels": first.num_channels}
        # journals store a list with a value per array, and for a single array the value alone
        for name in array_settings[0]:
            settings[name] = array_settings[0][name] if len(specs) == 1 else [values[name] for values in array_settings]
        return NewLevels(self.folder, folders, targets, settings, edit, self._warnings(specs), _describe(encodings[0]))

    def _warnings(self, specs: Sequence[LevelSpec]) -> tuple[str, ...]:
        """Return a warning if a label image gets another number of levels than its image, which the specification forbids."""
        above, mags = dirname(self.folder), {spec.box.mag for spec in specs}
        if basename(above) != LABELS or (self.destination.all_mags and self.destination.all_mags[-1] not in mags):
            return ()
        image = read_image(dirname(above))
        names = {mag.name for mag in (*self.destination.all_mags, *mags)} | {entry["path"] for entry in self._entries}
        if image is None or not self.destination.all_mags or len(image[1]["datasets"]) == len(names):
            return ()
        return (f"{self.folder}: has {len(names)} arrays, its image {len(image[1]['datasets'])}; OME-NGFF requires the same number: mag= selects some",)

    def _version(self, options: ZarrOptions) -> str:
        above = read_image(dirname(dirname(self.folder))) if self.version is None and basename(dirname(self.folder)) == LABELS else None
        stored = self.version or (None if above is None else above[0])  # one version in a hierarchy (OME-NGFF 0.6, "OME-Zarr Metadata")
        version = options.ngff or stored or DEFAULT_VERSION
        if stored is not None and version == "0.6" and has_systems(stored):
            version = stored
        if not is_written(version):
            raise FormatError(f"{self.folder}: is an image of OME-NGFF {version!r}, which cannot be extended, expected {' or '.join(VERSIONS)}")
        return version

    def _edit(self, spec: LevelSpec, levels: Sequence[PyramidLevel], version: str, *, is_label: bool) -> NgffEdit:
        """Return the metadata edit of the new arrays, checked against the existing image."""
        name = self.folder.rpartition("/")[2].removesuffix(".ome.zarr").removesuffix(".zarr")
        for level in levels:
            self._check_no_duplicate(level)
        rgb = None if is_label else rgb_range(spec.dtype, spec.num_channels)
        edit = NgffEdit(self.folder, version, multiscale(name, levels, new_axes(spec.num_channels), version=version), is_label, rgb)
        edit.check_current()
        if self.folder.split("/")[-2] == LABELS and not is_label:
            what = f"got {spec.num_channels} x {spec.dtype.name}, which is not a segmentation"
            raise ValueError(f"{self.folder}: labels must be integers in one channel, {what}")
        return edit

    @property
    def _entries(self) -> list[dict[str, Any]]:
        return [] if self.image is None else self.image["datasets"]

    def _check_no_duplicate(self, level: PyramidLevel) -> None:
        """Raise ExistsError if an array of another name has the voxel size of a new level."""
        for entry in self._entries:
            scale = scale_of(entry)[-3:]
            same = len(scale) == 3 and all(abs(a / b - 1) < 1e-3 for a, b in zip(scale, reversed(level.lengths), strict=True) if b)
            if same and entry["path"] != level.path:
                raise ExistsError(f"{self.folder}: has voxels of that size already, in the array {entry['path']!r}, which other software wrote")

    def _voxel_sizes(self) -> dict[str, Lengths | None]:
        """Return the voxel size of mag 1 according to each array, by its path; None for a path that is not the name of a mag."""
        sizes: dict[str, Lengths | None] = {}
        for entry in self._entries:
            sizes[entry["path"]] = None
            with contextlib.suppress(TypeError, ValueError):
                a, b, c = Mag.parse(entry["path"]).factors
                z, y, x = scale_of(entry)[-3:]
                sizes[entry["path"]] = (x / a, y / b, z / c) if min(x, y, z) > 0 else None
        return sizes

    def _check_voxel_size(self, size: Lengths, sizes: Mapping[str, Lengths | None], replaced: Collection[str]) -> None:
        """Raise FormatError if a remaining array implies another voxel size of mag 1."""
        for path, stored in sizes.items():
            if stored is None:  # other software named the arrays: _check_no_duplicate is the only check
                return
            if path not in replaced and any(abs(a / b - 1) > 1e-3 for a, b in zip(size, stored, strict=True)):
                stated = " x ".join(f"{n:g}" for n in stored)
                new = " x ".join(f"{n:g}" for n in size)
                raise FormatError(f"{self.folder}: the voxel size of mag 1 is {stated} nm according to its array {path!r}, got {new}")


@dataclass(frozen=True, slots=True)
class ArrayTarget(TargetFolder):
    """Single array that is stored again with other chunks, shards or compression; shape, type, axes and attributes stay."""

    prefix: ClassVar[str] = PREFIX

    def new_levels(self, specs: Sequence[LevelSpec], options: ZarrOptions, like: Volume | None = None, existing: str = "error") -> NewLevels:
        del existing
        node, spec = read_node(self.folder), specs[0]
        if node is None or not isinstance(like, StoredArray) or not isinstance(like.codec, ZarrCodec) or [spec.box.mag for spec in specs] != [like.mag]:
            raise UnsupportedError(f"{self.folder}: is a single Zarr array, and levels need an image: write it as a level of one with save()")
        axes, expected = like.codec.axes, new_axes(spec.num_channels)
        if axes != expected:
            raise UnsupportedError(f"{self.folder}: has the axes {axes}, and only arrays with the axes {expected} are stored again in place; name a target")
        is_v2 = node.record == ".zarray"
        encoding = _choose_encoding(spec, _with_defaults_from(options, like), "0.4" if is_v2 else "0.5", is_label=False)
        names = {"dimension_names": node.document.get("dimension_names")}
        target = _target_array(self.folder, spec, encoding, node.attributes, **({} if is_v2 or names["dimension_names"] is None else names))
        above = dirname(self.folder)
        return NewLevels(above, (self.folder,), (target,), _journal_settings(spec, encoding), ArrayEdit(above), stored_as=_describe(encoding))


def _with_defaults_from(options: ZarrOptions, like: Volume | None) -> ZarrOptions:
    """Fill missing options with the encoding of another Zarr array."""
    if not isinstance(like, StoredArray) or not isinstance(like.codec, ZarrCodec):
        return options
    chunk_shape, shard_shape = options.chunk_shape or like.chunk_shape, options.shard_shape
    if shard_shape is None:
        shard_shape = like.shard_shape if like.layout.is_sharded and chunk_shape == like.chunk_shape else like.layout.is_sharded
    completed = replace(options, chunk_shape=chunk_shape, shard_shape=shard_shape)
    kind, level = like.codec.compression
    if options.compression is not None or kind not in ("raw", *options.levels):
        return completed
    return replace(completed, compression=kind, level=level if options.level is None else options.level)


def _blosc_of(like: Volume | None) -> tuple[str, int]:
    """Return the compressor inside Blosc and the shuffle of a Zarr array that uses Blosc, else the default."""
    return (like.codec.blosc if isinstance(like, StoredArray) and isinstance(like.codec, ZarrCodec) else None) or _BLOSC


def _choose_encoding(spec: LevelSpec, options: ZarrOptions, version: str, *, is_label: bool) -> ArrayEncoding:
    dtype = _checked_dtype(spec.dtype)
    # a byte shuffle helps to compress numbers of several bytes, but breaks up the repeated ids of a segmentation
    compression = options.compression or ("zstd" if is_label or dtype.itemsize == 1 else "blosc")
    stored: Any = options.with_defaults()
    is_sharded = stored.shard_shape is not False
    if is_sharded and version == "0.4":
        if stored.shard_shape is not True:
            raise ValueError("OME-NGFF 0.4 is stored in Zarr 2, which has no shards: omit shard_shape, or write version 0.5")
        is_sharded = False
    if isinstance(stored.shard_shape, bool):
        cells = default_chunks_per_shard(spec.box.size, stored.chunk_shape, spec.voxel_nbytes, is_sharded=is_sharded)
    else:
        cells = chunks_per_shard(stored.shard_shape, stored.chunk_shape)
    level, number = options.level_of(compression), zarr_format_of(version)
    return ArrayEncoding(dtype, spec.num_channels, stored.chunk_shape, compression, level, cells, is_sharded, number)


def _attributes_in_place(folder: str, spec: LevelSpec, like: Volume | None) -> dict[str, Any] | None:
    """Return the attributes of a level that replaces its own source, None for another level."""
    node = read_node(folder) if isinstance(like, StoredArray) and like.folder == folder else None
    return None if node is None else {**node.attributes, **_placement(spec)}


def _placement(spec: LevelSpec) -> dict[str, Any]:
    return {"mag": list(spec.box.mag.factors), "offset_vx": list(spec.box.topleft)}


def _target_array(folder: str, spec: LevelSpec, encoding: ArrayEncoding, attributes: dict[str, Any] | None = None, **others: Any) -> TargetArray:
    """Return a new array as a target; its element 0 is the lowest voxel of its box. ``others`` are further keys of a document of version 3."""
    store, box = open_store(folder), spec.box
    attributes = _placement(spec) if attributes is None else attributes
    if encoding.version == 2:
        documents = {".zarray": encoding.document_v2(box.size), ".zattrs": attributes}
    else:
        documents = {FILE_NAME: {**encoding.document(box.size, attributes), **others}}
    name = next(iter(documents))
    array = zarr_array(store, name, documents[name], new_axes(spec.num_channels), is_new=True)
    array = replace(array, mag=box.mag, grid=replace(array.grid, unit=encoding.shard_shape, origin=box.topleft))
    return TargetArray(array, store, tuple((name, format_document(document).encode()) for name, document in documents.items()))


def _journal_settings(spec: LevelSpec, encoding: ArrayEncoding) -> dict[str, Any]:
    """Return the settings of an array that a resumed job compares."""
    return {
        "mag": spec.box.mag.name, "size": list(spec.box.size), "origin": list(spec.box.topleft), "chunk": list(encoding.chunk_shape),
        "shard": list(encoding.shard_shape), "sharded": encoding.is_sharded, "compression": encoding.compression, "level": encoding.level,
    }  # fmt: skip


def _describe(encoding: ArrayEncoding) -> str:
    chunk, shard = (" x ".join(map(str, shape)) for shape in (encoding.chunk_shape, encoding.shard_shape))
    return f"{encoding.compression}, chunks of {chunk} voxels, {f'in shards of {shard}' if encoding.is_sharded else 'each a file'}"


def _checked_dtype(dtype: Any) -> np.dtype[Any]:
    native: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    if native.kind not in "iuf" or native.itemsize > 8:
        raise TypeError(f"an image holds integers or real numbers of up to 64 bits, got {native.name}: cast it with .astype()")
    return native


def names_zarr_image(url: object) -> bool:
    """Return whether a target names an OME-NGFF image by the prefix ``zarr://`` or the suffix ``.ome.zarr``.

    Examples
    --------
    >>> names_zarr_image("em.ome.zarr"), names_zarr_image("em.ome.zarr/labels/neurons"), names_zarr_image("zarr://em"), names_zarr_image("em.zarr")
    (True, True, True, False)
    """
    if not isinstance(url, (str, os.PathLike)):
        return False
    text = os.fspath(url)
    return text.startswith(PREFIX) or any(part.lower().endswith(_SUFFIX) for part in text.split("/"))


def ngff_target(destination: Destination) -> NgffTarget:
    """Return the target of an image; raises ExistsError if its folder contains something else."""
    text = destination.url.removeprefix(PREFIX)
    if is_remote(text):
        raise UnsupportedError(f"{text}: images are written to local folders only; write to one and copy it, for example with aws s3 or gsutil")
    folder = files.realpath(local_path(text))
    if contains_wkw(folder):
        raise ExistsError(f"{folder}: holds WKW data; write an image to another folder (write_zarr_view makes WKW readable as Zarr in place)")
    if array_record(folder) is not None:
        raise ExistsError(f"{folder}: is a Zarr array: region= writes a part of it; a new level is written to {dirname(folder)}, with mag=")
    if files.lexists(folder) and not files.isdir(folder):
        raise ExistsError(f"{folder}: is a file, expected nothing or a folder")
    existing = read_image(folder)
    if basename(folder) == LABELS and read_image(dirname(folder)) is not None:
        raise ExistsError(f"{folder}: is the group that lists the labels of an image; write to a folder in it, such as {folder}/neurons")
    if files.isdir(folder) and read_attributes(folder) is None:
        # Records of jobs may exist, and arrays of a job that was killed after their publication, before the image listed them.
        others = (name for name in files.listdir(folder) if not name.startswith(".") and array_record(f"{folder}/{name}") is None)
        other = min(others, default=None)
        if other is not None:
            raise ExistsError(f"{folder}: contains other files than an image ({other})")
    version, image = existing or (None, None)
    return NgffTarget(folder, destination, image, version)
