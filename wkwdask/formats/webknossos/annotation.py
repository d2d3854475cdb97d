"""Annotations as WEBKNOSSOS exports them: volumes, what a mag is with blocks of them in the place of its own, and the nodes of an NML.

A volume annotation is a zip with an NML and ``data*.zip`` in it, such a ``data*.zip``, or either of them unpacked. The data hold mags of WKW with files of
one block, ``1/z0/y0/x0.wkw``, and only of blocks that somebody changed; of many mags there is but a header. A block that is stored counts as a whole, zeros
included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from wkwdask.errors import CorruptError, FormatError, IncompleteWriteError, MissingError, UnsupportedError
from wkwdask.formats.wkw.file import decode_file
from wkwdask.formats.wkw.header import HEADER_NBYTES, parse_header
from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.grid import cell_range
from wkwdask.geometry.mag import Mag
from wkwdask.model.parsing import reading
from wkwdask.model.volume import delegate_to
from wkwdask.plans.cells import cell_map, union_cells
from wkwdask.store import files
from wkwdask.store.archive import ArchiveFile, Folder, Zip
from wkwdask.store.paths import basename, local_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.plans.cells import CellMap

_BLOCK = re.compile(r"(?:(?P<prefix>.+)/)?(?P<mag>\d+(?:-\d+-\d+)?)/(?:header|z(?P<z>\d{1,9})/y(?P<y>\d{1,9})/x(?P<x>\d{1,9}))\.wkw")
_DATA_ZIP = re.compile(r"(?:.*/)?data[^/]*\.zip")
_NML_NBYTES = 1 << 30

_Stored = tuple[Mag, npt.NDArray[np.int64]]
"""A mag, and the indices of its stored blocks."""


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
        return _contents(self.file, self._open())[self.folder][1]

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
class VolumeLayer:
    """One volume layer of an annotation."""

    member: str
    """Its ``data*.zip``."""
    name: str | None = None
    """What its NML calls it."""
    fallback: str | None = None
    """Layer of the dataset that it was made on, where its NML says so."""

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
    for folder, (mag, blocks) in sorted(contents.items(), key=lambda item: (item[1][0].maximum, item[1][0].factors)):
        if len(blocks):
            header = parse_header(opened.read(f"{folder}/header.wkw", HEADER_NBYTES)[:HEADER_NBYTES], f"{file.name}:{folder}/header.wkw", is_data_file=False)
            if header.file_len != 1:
                raise UnsupportedError(f"{file.name}:{folder}: files of {header.file_len}^3 blocks do not tell which blocks were annotated, expected 1")
            mags.append(AnnotationMag(file, folder, mag, header, file.state))
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
    found = [layer for layer in layers if (layer.fallback == fallback if volume_layer is None else volume_layer in (layer.name, basename(layer.member)))]
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


def _contents(file: ArchiveFile, opened: Folder | Zip) -> dict[str, _Stored]:
    """List the mags and their blocks; of a zip that stays open, once."""
    if isinstance(opened, Folder):
        return _listed(file, opened.names())
    if opened.index is None:
        opened.index = _listed(file, opened.names())
    index: dict[str, _Stored] = opened.index
    return index


def _listed(file: ArchiveFile, names: Iterator[str]) -> dict[str, _Stored]:
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
    return {folder: (mags[folder], np.array(sorted(blocks), np.int64).reshape(-1, 3)[:, ::-1]) for folder, blocks in found.items()}


def find_mag(mags: list[AnnotationMag], wanted: Mag) -> AnnotationMag | None:
    """Find one mag of an annotation, None where it holds no blocks at all."""
    found = next((mag for mag in mags if mag.mag == wanted), None)
    if found is None and mags:
        raise MissingError(f"{mags[0].file.name}: no blocks of mag {wanted}; there are some of {', '.join(str(mag.mag) for mag in mags)}")
    return found


_FARTHEST = 2**53


def read_nodes(path: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Read where the nodes of all trees are."""
    trees: list[int] = []
    positions: list[tuple[float, float, float]] = []
    root, number = None, -1
    with reading(path, "NML", lambda: f"in node {len(positions) + 1}"):
        for event, element in ElementTree.iterparse(path, ("start", "end")):
            if event == "start":
                root = element if root is None else root
                number += element.tag == "thing"
            elif element.tag == "node" and number >= 0:
                trees.append(number)
                positions.append((float(element.attrib["x"]), float(element.attrib["y"]), float(element.attrib["z"])))
            elif element.tag == "thing":
                element.clear()
    if root is None or root.tag != "things":
        raise FormatError(f"{path}: begins with <{'' if root is None else root.tag}>, expected <things>, as an NML does")
    places = np.array(positions, np.float64).reshape(-1, 3)
    far = np.flatnonzero(~(np.abs(places) < _FARTHEST).all(axis=1))  # not a number is not less either
    if len(far):
        raise FormatError(f"{path}: node {far[0] + 1} lies at {', '.join(f'{n:g}' for n in places[far[0]])}, which no volume reaches")
    return np.array(trees, np.int64), np.floor(places).astype(np.int64)


@dataclass(frozen=True, slots=True)
class MergedVolume:
    """A mag, and annotations on it: a block that one of them stores is taken from the last that does, zeros included."""

    base: StoredArray
    """The mag."""
    annotations: tuple[AnnotationMag, ...]
    """The annotations, the strongest last."""
    box: BoundingBox
    """Where there are data; outside of the base's own box, only those of annotations."""

    dtype = delegate_to("base", "dtype")
    num_channels = delegate_to("base", "num_channels")
    chunk_shape = delegate_to("base", "chunk_shape")
    shard_shape = delegate_to("base", "shard_shape")
    name = delegate_to("base", "name")
    is_current = delegate_to("base", "is_current")
    count_files = delegate_to("base", "count_files")
    shard_path = delegate_to("base", "shard_path")
    origin = (0, 0, 0)
    is_regular = True
    lengths_nm = None

    @property
    def token(self) -> tuple[Any, ...]:
        """Values that change when the base or an annotation is replaced."""
        return ("merged", self.base.token, self.annotations, self.box)

    @property
    def content_token(self) -> tuple[Any, ...]:
        """Values that change when the base or an annotation holds something else."""
        return ("merged", *self.base.content_token, self.annotations, self.box)

    def moved(self, shift: Vec3) -> MergedVolume:
        """Stay in place: what is merged is written as WKW, whose files count from voxel 0, too."""
        assert not any(shift)
        return self

    def read_into(self, out: npt.NDArray[Any], topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True) -> int:
        """Fill an array with voxels, see :meth:`wkwdask.model.volume.Volume.read_into`."""
        if not out.size:
            return 0
        wanted = BoundingBox(topleft, (out.shape[1], out.shape[2], out.shape[3]), self.box.mag)
        stored = [(annotation, _index(row)) for annotation in self.annotations for row in annotation.blocks_in(wanted)]
        covering = [number for number, (annotation, index) in enumerate(stored) if _block_box(annotation, index).contains(wanted)]
        stored = stored[max(covering, default=0) :]
        nonzero = 0 if covering else self._read_base(out, wanted, first_channel, fill_zeros=fill_zeros or bool(stored))
        for annotation, index in stored:
            block = annotation.read_block(index, self.dtype)[first_channel : first_channel + out.shape[0]]
            step = annotation.header.block_len
            corner = [n * step for n in index]
            inside = [(max(t, c), min(t + n, c + step)) for t, n, c in zip(topleft, out.shape[1:], corner, strict=True)]
            here = tuple(slice(a - t, b - t) for (a, b), t in zip(inside, topleft, strict=True))
            part = block[(slice(None), *(slice(a - c, b - c) for (a, b), c in zip(inside, corner, strict=True)))]
            out[(slice(None), *here)] = part
            nonzero += bool(part.any())
        return nonzero

    def _read_base(self, out: npt.NDArray[Any], wanted: BoundingBox, first_channel: int, *, fill_zeros: bool) -> int:
        """Fill an array from the base, with zeros outside of its box as far as the whole goes beyond that."""
        inside = wanted if self.box == self.base.box else wanted.intersection(self.base.box)
        if inside == wanted:
            return self.base.read_into(out, wanted.topleft, first_channel, fill_zeros=fill_zeros)
        out[...] = 0
        if inside.is_empty:
            return 0
        return self.base.read_into(part_of_array(out, inside, wanted.topleft), inside.topleft, first_channel)

    def touched(self, box: BoundingBox, cell_shape: Vec3) -> CellMap:
        """Tell which cells that a box touches hold voxels of annotated blocks."""
        ranges = cell_range(box, cell_shape)
        found = cell_map(box, cell_shape, self.name)
        for annotation in self.annotations:
            step = annotation.header.block_len
            for row in np.unique(annotation.blocks_in(box) * step // np.maximum(cell_shape, step), axis=0).tolist():
                edges = np.maximum(cell_shape, step)
                first = [max(t, n * edge) // c - r.start for t, n, edge, c, r in zip(box.topleft, row, edges, cell_shape, ranges, strict=True)]
                last = [-(-min(b, (n + 1) * edge) // c) - r.start for b, n, edge, c, r in zip(box.bottomright, row, edges, cell_shape, ranges, strict=True)]
                found[tuple(slice(a, b) for a, b in zip(first, last, strict=True))] = True
        return found

    def occupied(self, cell_shape: Vec3) -> CellMap:
        """Tell which cells of a grid have voxels in a stored file or block, see :meth:`wkwdask.model.volume.Volume.occupied`."""
        return union_cells(self.base.cropped(self.box).occupied(cell_shape), self.touched(self.box, cell_shape))

    def shard_states(self, box: BoundingBox) -> States:
        """Look at the stored files that a part of the volume touches; an annotation has a row for each that it has blocks for."""
        inside = box.intersection(self.box)
        return np.concatenate([self.base.cropped(self.box).shard_states(inside), *self._annotated_states(inside)])

    def stored_states(self) -> States:
        """Look at all stored files that the box touches."""
        return np.concatenate([self.base.cropped(self.box).stored_states(), *self._annotated_states(self.box)])

    def _annotated_states(self, box: BoundingBox) -> Iterator[States]:
        for annotation in self.annotations:
            shards = np.unique(annotation.blocks_in(box) * annotation.header.block_len // self.shard_shape[0], axis=0).reshape(-1, 3)
            yield np.concatenate([shards, np.tile(np.array(annotation.file.state, np.int64), (len(shards), 1))], axis=1)


def _block_box(annotation: AnnotationMag, index: Vec3) -> BoundingBox:
    step = annotation.header.block_len
    return BoundingBox((index[0] * step, index[1] * step, index[2] * step), (step, step, step), annotation.mag)


def _index(row: npt.NDArray[np.int64]) -> Vec3:
    x, y, z = row.tolist()
    return x, y, z
