"""Volume annotations as WEBKNOSSOS exports them: a zip with an NML and ``data*.zip`` in it, such a ``data*.zip``, or either of them unpacked.

The data hold mags of WKW with files of one block, ``1/z0/y0/x0.wkw``, and only of blocks that somebody changed; of many mags there is but a header. A block
that is stored counts as a whole, zeros included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from wkwdask.errors import CorruptError, FormatError, IncompleteWriteError, MissingError, UnsupportedError
from wkwdask.formats.wkw.file import decode_file
from wkwdask.formats.wkw.header import HEADER_NBYTES, parse_header
from wkwdask.geometry.mag import Mag
from wkwdask.model.parsing import reading
from wkwdask.store import files
from wkwdask.store.archive import ArchiveFile, Folder, Zip
from wkwdask.store.paths import basename, local_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import numpy.typing as npt

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Vec3

_BLOCK = re.compile(r"(?:(?P<prefix>.+)/)?(?P<mag>\d+(?:-\d+-\d+)?)/(?:header|z(?P<z>\d{1,9})/y(?P<y>\d{1,9})/x(?P<x>\d{1,9}))\.wkw")
_DATA_ZIP = re.compile(r"(?:.*/)?data[^/]*\.zip")
_NML_NBYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class AnnotationMag:
    """One mag of an annotation. Small to pickle: which blocks there are is looked up where it is needed."""

    file: ArchiveFile
    """Where its files are."""
    folder: str
    """Its folder there."""
    mag: Mag
    """The mag."""
    header: WkwHeader
    """What its ``header.wkw`` says."""
    state: tuple[int, int]
    """Size and time of the archive when it was opened."""
    last_known: int = 0
    """Ids above are moved by ``moved_by``."""
    moved_by: int = 0
    """What is added to new ids."""

    @property
    def name(self) -> str:
        """What an error calls it."""
        return f"{self.file.name}:{self.folder}"

    def _open(self) -> Folder | Zip:
        """Open the archive."""
        if self.file.state != self.state:
            raise IncompleteWriteError(f"{self.file.name}: was replaced while it was read")
        return self.file.open()

    def blocks(self) -> npt.NDArray[np.int64]:
        """Give the indices of the stored blocks, shape (n, 3), ordered by z."""
        return _contents(self.file, self._open())[self.folder].indices

    def blocks_in(self, box: BoundingBox) -> npt.NDArray[np.int64]:
        """Give the indices of the stored blocks that touch a box, shape (n, 3)."""
        blocks, step = self.blocks(), self.header.block_len
        low = [a // step for a in box.topleft]
        high = [-(-b // step) for b in box.bottomright]
        first, last = np.searchsorted(blocks[:, 2], (low[2], high[2]))
        near = blocks[first:last]
        found: npt.NDArray[np.int64] = near[((near >= low) & (near < high)).all(axis=1)]
        return found

    def read_block(self, index: Vec3, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Decode one stored block."""
        name = f"{self.folder}/z{index[2]}/y{index[1]}/x{index[0]}.wkw"
        most = 2 * self.header.block_nbytes + self.header.smallest_data_offset
        raw = self._open().read(name, most)
        source = f"{self.file.name}:{name}"
        if len(raw) > most:
            raise CorruptError(f"{source}: more than {most} bytes, expected one block of {self.header.block_nbytes} bytes")
        self.header.check_same_mag(parse_header(raw[:HEADER_NBYTES], source, is_data_file=True), source)
        voxels = decode_file(raw, source).astype(dtype, copy=False)
        return np.where(voxels > self.last_known, voxels + dtype.type(self.moved_by), voxels) if self.moved_by else voxels


@dataclass(frozen=True, slots=True)
class _Contents:
    """What is stored of one mag."""

    mag: Mag
    indices: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class VolumeLayer:
    """One volume layer of an annotation."""

    member: str
    """Its ``data*.zip``."""
    name: str | None = None
    """What its NML calls it."""
    fallback: str | None = None
    """Layer of the dataset that it was made on, where its NML says so."""

    def is_called(self, name: str) -> bool:
        """Tell whether a user means this layer: by its name, or by that of its zip."""
        return name in (self.name, basename(self.member))

    def __str__(self) -> str:
        file = basename(self.member)
        called = file if self.name is None else f"{self.name} ({file})"
        return called if self.fallback is None else f"{called}, made on layer {self.fallback}"


def open_annotation(url: str | os.PathLike[str], fallback: str | None = None, volume_layer: str | None = None) -> tuple[list[AnnotationMag], str]:
    """Open one volume layer of an annotation."""
    file, note = _data_file(ArchiveFile(local_path(url)), fallback, volume_layer)
    opened = file.open()
    contents = _contents(file, opened)
    mags = []
    for folder, stored in sorted(contents.items(), key=lambda item: (item[1].mag.maximum, item[1].mag.factors)):
        if len(stored.indices):
            header = parse_header(opened.read(f"{folder}/header.wkw", HEADER_NBYTES)[:HEADER_NBYTES], f"{file.name}:{folder}/header.wkw", is_data_file=False)
            if header.file_len != 1:
                raise UnsupportedError(f"{file.name}:{folder}: files of {header.file_len}^3 blocks do not tell which blocks were annotated, expected 1")
            mags.append(AnnotationMag(file, folder, stored.mag, header, file.state))
    return mags, note


def _data_file(file: ArchiveFile, fallback: str | None, volume_layer: str | None) -> tuple[ArchiveFile, str]:
    """Find what holds the mags, and say what else there is."""
    opened = file.open()
    names = list(opened.names())
    if any(_BLOCK.fullmatch(name) for name in names):
        if volume_layer is not None:
            raise ValueError(f"{file.name}: is one volume layer without a name; leave volume_layer= out")
        return file, ""
    inner = sorted(name for name in names if _DATA_ZIP.fullmatch(name))
    note = ""
    if len(inner) > 1 or (inner and volume_layer is not None):
        layers = _volume_layers(opened, names, inner, file)
        chosen = _chosen(layers, fallback, volume_layer, file)
        inner = [chosen.member]
        left = "; ".join(str(layer) for layer in layers if layer is not chosen)
        note = f"{file.path}: used volume layer {chosen}; left out {left}" if left else ""
    if not inner:
        what = "its volume data are Zarr, only WKW can be read" if any(name.endswith((".zarray", "zarr.json")) for name in names) else "no volume annotation"
        raise (UnsupportedError if "Zarr" in what else MissingError)(f"{file.name}: {what} (neither 1/z0/y0/x0.wkw nor data*.zip)")
    found = ArchiveFile(f"{file.path}/{inner[0]}") if files.isdir(file.path) else ArchiveFile(file.path, inner[0])
    if not any(_BLOCK.fullmatch(name) for name in found.open().names()) and any(True for _ in found.open().names()):
        raise UnsupportedError(f"{found.name}: its data are not WKW, such as 1/z0/y0/x0.wkw; export the annotation as WKW")
    return found, note


def _chosen(layers: list[VolumeLayer], fallback: str | None, volume_layer: str | None, file: ArchiveFile) -> VolumeLayer:
    """Choose one of several volume layers."""
    found = [layer for layer in layers if (layer.fallback == fallback if volume_layer is None else layer.is_called(volume_layer))]
    if len(found) == 1:
        return found[0]
    listed = "; ".join(map(str, layers))
    if volume_layer is None:
        raise ValueError(f"{file.path}: several volume annotations, of which {len(found)} were made on layer {fallback}; name one with volume_layer=: {listed}")
    if not found:
        raise MissingError(f"{file.path}: no volume layer {volume_layer!r}; there are {listed}")
    raise ValueError(f"{file.path}: {len(found)} volume layers are called {volume_layer!r}; name the data*.zip of one: {listed}")


def _volume_layers(opened: Folder | Zip, names: list[str], inner: list[str], file: ArchiveFile) -> list[VolumeLayer]:
    """List the volume layers, with what an NML says about them."""
    described = {}
    for name in names:
        if name.endswith(".nml"):
            with reading(f"{file.name}:{name}", "NML"):
                root = ElementTree.fromstring(opened.read(name, _NML_NBYTES))
            described.update({volume.get("location"): volume for volume in root.iter("volume")})
    found = [(member, described.get(basename(member))) for member in inner]
    return [VolumeLayer(member) if volume is None else VolumeLayer(member, volume.get("name"), volume.get("fallbackLayer")) for member, volume in found]


def _contents(file: ArchiveFile, opened: Folder | Zip) -> dict[str, _Contents]:
    """List the mags and their blocks; of a zip that stays open, once."""
    if isinstance(opened, Folder):
        return _listed(file, opened.names())
    if opened.index is None:
        opened.index = _listed(file, opened.names())
    index: dict[str, _Contents] = opened.index
    return index


def _listed(file: ArchiveFile, names: Iterator[str]) -> dict[str, _Contents]:
    found: dict[str, list[tuple[int, int, int]]] = {}
    mags: dict[str, Mag] = {}
    for name in names:
        match = _BLOCK.fullmatch(name)
        if match is None:
            continue
        folder = name[: match.end("mag")]
        if folder not in mags:
            with reading(f"{file.name}:{name}", "annotation"):
                mags[folder] = Mag.parse(match["mag"])
        blocks = found.setdefault(folder, [])
        if match["x"] is not None:
            blocks.append((int(match["z"]), int(match["y"]), int(match["x"])))
    if len(set(mags.values())) != len(mags):
        raise FormatError(f"{file.name}: holds a mag twice: {', '.join(sorted(mags))}")
    return {folder: _Contents(mags[folder], np.array(sorted(blocks), np.int64).reshape(-1, 3)[:, ::-1]) for folder, blocks in found.items()}


def check_not_missing(mags: list[AnnotationMag], wanted: Mag) -> AnnotationMag | None:
    """Find one mag of an annotation, None where it holds no blocks at all."""
    found = next((mag for mag in mags if mag.mag == wanted), None)
    if found is None and mags:
        raise MissingError(f"{mags[0].file.name}: no blocks of mag {wanted}; there are some of {', '.join(str(mag.mag) for mag in mags)}")
    return found
