"""Annotations exported by WEBKNOSSOS: volume layers, a mag merged with them, and the nodes of an
NML.

A volume annotation is a zip file that contains an NML and ``data*.zip``, or one of the
``data*.zip``, packed or unpacked. The data are WKW mags with files of one block, such as
``1/z0/y0/x0.wkw``, and only changed blocks are stored; many mags consist of a header only. A stored
block replaces the block of the layer completely, zeros included::

    export.zip
      annotation.nml          <volume location="data_0_Volume.zip" name="Volume" fallbackLayer="segmentation"/>
      data_0_Volume.zip
        1/header.wkw
        1/z3/y2/x7.wkw        the changed block (7, 2, 3) of mag 1
        2-2-1/header.wkw      a mag without blocks
"""  # noqa: E501

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from wkwdask.array_types import AnyArray, IntArray
from wkwdask.errors import FormatError, IncompleteWriteError, MissingError, UnsupportedError
from wkwdask.formats.wkw.file import decode_file
from wkwdask.formats.wkw.header import HEADER_NBYTES, parse_header
from wkwdask.formats.wkw.splice import Overlaid
from wkwdask.geometry.bounding_box import BoundingBox, part_of_array
from wkwdask.geometry.grid import cell_range
from wkwdask.geometry.mag import Mag, mag_order
from wkwdask.model.parsing import reading
from wkwdask.model.volume import delegate_to
from wkwdask.plans.cells import cell_map, union_cells
from wkwdask.store.lru import LruCache
from wkwdask.store.paths import ZIP, basename, is_zipped, local_path, split
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.states import States
    from wkwdask.model.store import FileState
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.plans.cells import CellMap

_BLOCK = re.compile(
    r"(?:(?P<prefix>.+)/)?(?P<mag>\d+(?:-\d+-\d+)?)/(?:header|z(?P<z>\d{1,9})/y(?P<y>\d{1,9})/x(?P<x>\d{1,9}))\.wkw"
)
_DATA_ZIP = re.compile(r"(?:.*/)?data[^/]*\.zip")
_NML_NBYTES = 1 << 30
_HEADER_FILE_NBYTES = 1 << 20

_StoredMag = tuple[Mag, IntArray]
"""A mag and the indices of its stored blocks, shape (n, 3)."""


@dataclass(frozen=True, slots=True)
class AnnotationMag:
    """One mag of an annotation. Small to pickle: the list of blocks is read where it is needed."""

    file: str
    """Path of the zip or folder that contains the mag."""
    folder: str
    """Path of the mag in the archive."""
    mag: Mag
    header: WkwHeader
    state: tuple[int, int]
    """Size [bytes] and modification time [ns] of the zip or folder when it was opened."""
    largest_layer_id: int = 0
    """Largest id of the layer; larger ids are new and are raised by ``id_offset``."""
    id_offset: int = 0
    """Offset added to new ids, so that ids of several annotations do not collide."""

    @property
    def name(self) -> str:
        """Name of the mag in error messages."""
        return f"{self.file}/{self.folder}"

    def _check_unchanged(self) -> None:
        if state_of(self.file) != self.state:
            raise IncompleteWriteError(f"{self.file}: was replaced while it was read")

    def blocks(self) -> IntArray:
        """Return the indices of the stored blocks, shape (n, 3), sorted by z."""
        self._check_unchanged()
        return _contents(self.file)[self.folder][1]

    def blocks_in(self, box: BoundingBox) -> IntArray:
        """Return the indices of the stored blocks that touch a box, shape (n, 3)."""
        blocks, step = self.blocks(), self.header.block_len
        low = [a // step for a in box.topleft]
        high = [-(-b // step) for b in box.bottomright]
        first, last = np.searchsorted(blocks[:, 2], (low[2], high[2]))
        near = blocks[first:last]
        touching: IntArray = near[((near >= low) & (near < high)).all(axis=1)]
        return touching

    def read_block(self, index: Vec3, dtype: np.dtype[Any]) -> AnyArray:
        """Decode one stored block."""
        source = f"{self.name}/z{index[2]}/y{index[1]}/x{index[0]}.wkw"
        # LZ4 adds little to incompressible data. A file of more than twice the block is broken, and
        # is not read into memory as a whole.
        max_nbytes = 2 * self.header.block_nbytes + self.header.smallest_data_offset
        self._check_unchanged()
        raw = _read(source, max_nbytes)
        self.header.check_same_mag(
            parse_header(raw[:HEADER_NBYTES], source, is_data_file=True), source
        )
        voxels = decode_file(raw, source).astype(dtype, copy=False)
        return (
            np.where(voxels > self.largest_layer_id, voxels + dtype.type(self.id_offset), voxels)
            if self.id_offset
            else voxels
        )


@dataclass(frozen=True, slots=True)
class VolumeLayer:
    """One volume layer of an annotation."""

    member: str
    """Path of its ``data*.zip`` in the export."""
    name: str | None = None
    """Name in the NML; None if the NML does not list it."""
    fallback: str | None = None
    """Layer of the dataset that it was drawn on (``fallbackLayer``); None if unknown."""

    def __str__(self) -> str:
        file = basename(self.member)
        label = file if self.name is None else f"{self.name} ({file})"
        return label if self.fallback is None else f"{label}, drawn on layer {self.fallback}"


def open_annotation(
    url: str | os.PathLike[str], fallback: str | None = None, volume_layer: str | None = None
) -> tuple[list[AnnotationMag], str]:
    """Open one volume layer of an annotation, and return its mags with a note on the layers that
    are not used."""
    path = local_path(url)
    # WEBKNOSSOS and its users name the zips of annotations as they like.
    file, note = _data_file(
        f"{path}{ZIP}" if store_at(path).is_file() else path, fallback, volume_layer
    )
    state, contents = state_of(file), _contents(file)
    mags = []
    for folder, (mag, blocks) in sorted(contents.items(), key=lambda item: mag_order(item[1][0])):
        if len(blocks):
            path = f"{file}/{folder}/header.wkw"
            header = parse_header(
                _read(path, _HEADER_FILE_NBYTES)[:HEADER_NBYTES], path, is_data_file=False
            )
            if header.file_len != 1:
                raise UnsupportedError(
                    f"{file}/{folder}: files of {header.file_len}^3 blocks do not show which "
                    "blocks were annotated, expected 1"
                )
            mags.append(AnnotationMag(file, folder, mag, header, state))
    return mags, note


def state_of(file: str) -> tuple[int, int]:
    """Return the size [bytes] (0 for a folder) and modification time [ns] of an annotation."""
    try:
        status = store_at(file).status()
    except FileNotFoundError:
        raise MissingError(f"{file}: no such file") from None
    return (status.st_size if is_zipped(file) else 0), status.st_mtime_ns


def _read(path: str, max_nbytes: int) -> bytes:
    folder, name = split(path)
    data = store_at(folder).read_document(name, max_nbytes)
    if data is None:
        raise MissingError(f"{path}: not found")
    return data


def _names(file: str) -> Iterator[str]:
    """Yield the paths of all files in an annotation, relative to it."""
    for folder, _, names in store_at(file).walk():
        yield from (f"{folder}/{name}"[len(file) + 1 :] for name in names)


def _data_file(file: str, fallback: str | None, volume_layer: str | None) -> tuple[str, str]:
    """Find the zip or folder that contains the mags, and return it with a note on other volume
    layers."""
    state_of(file)  # raises the error for a missing file
    names = list(_names(file))
    if any(_BLOCK.fullmatch(name) for name in names):
        if volume_layer is not None:
            raise ValueError(
                f"{file}: is a single volume layer without a name; leave volume_layer= out"
            )
        return file, ""
    # An export with several volume layers: the one drawn on the target layer is used unless the
    # user names another.
    inner = sorted(name for name in names if _DATA_ZIP.fullmatch(name))
    note = ""
    if len(inner) > 1 or (inner and volume_layer is not None):
        layers = _volume_layers(names, inner, file)
        chosen = _choose_layer(layers, fallback, volume_layer, file)
        inner = [chosen.member]
        others = "; ".join(str(layer) for layer in layers if layer is not chosen)
        note = f"{file}: used volume layer {chosen}; left out {others}" if others else ""
    if not inner:
        what = (
            "the volume data are Zarr, only WKW can be read"
            if any(name.endswith((".zarray", "zarr.json")) for name in names)
            else "no volume annotation"
        )
        raise (UnsupportedError if "Zarr" in what else MissingError)(
            f"{file}: {what} (neither 1/z0/y0/x0.wkw nor data*.zip)"
        )
    data = local_path(f"{file}/{inner[0]}")
    stored = list(_names(data))
    if stored and not any(map(_BLOCK.fullmatch, stored)):
        raise UnsupportedError(
            f"{data}: expected WKW data such as 1/z0/y0/x0.wkw, found other files; export the "
            "annotation as WKW"
        )
    return data, note


def _choose_layer(
    layers: list[VolumeLayer], fallback: str | None, volume_layer: str | None, file: str
) -> VolumeLayer:
    """Choose one of several volume layers."""
    if volume_layer is None:
        matching = [layer for layer in layers if layer.fallback == fallback]
    else:
        matching = [
            layer for layer in layers if volume_layer in (layer.name, basename(layer.member))
        ]
    if len(matching) == 1:
        return matching[0]
    listed = "; ".join(map(str, layers))
    if volume_layer is None:
        raise ValueError(
            f"{file}: several volume annotations, {len(matching)} of them drawn on layer "
            f"{fallback}; name one with volume_layer=: {listed}"
        )
    if not matching:
        raise MissingError(f"{file}: no volume layer {volume_layer!r}; there are {listed}")
    raise ValueError(
        f"{file}: {len(matching)} volume layers are called {volume_layer!r}; name the data*.zip of "
        f"one: {listed}"
    )


def _volume_layers(names: list[str], inner: list[str], file: str) -> list[VolumeLayer]:
    """List the volume layers, with name and fallback layer from the NML."""
    described = {}
    for name in names:
        if name.endswith(".nml"):
            with reading(f"{file}/{name}", "NML"):
                root = ElementTree.fromstring(_read(f"{file}/{name}", _NML_NBYTES))
            described.update({volume.get("location"): volume for volume in root.iter("volume")})
    volumes = [(member, described.get(basename(member))) for member in inner]
    return [
        VolumeLayer(member)
        if volume is None
        else VolumeLayer(member, volume.get("name"), volume.get("fallbackLayer"))
        for member, volume in volumes
    ]


def _contents(file: str) -> dict[str, _StoredMag]:
    """List the mags and their blocks; the list of a zip is cached."""
    if not is_zipped(file):
        return _list_mags(file)
    key = file, state_of(file)
    listed = _listed.get(key)
    if listed is None:
        listed = _list_mags(file)
        _listed.put(key, listed)
    return listed


_listed: LruCache[dict[str, _StoredMag]] = LruCache(16)


def _list_mags(file: str) -> dict[str, _StoredMag]:
    stored: dict[str, list[tuple[int, int, int]]] = {}
    mags: dict[str, Mag] = {}
    for name in _names(file):
        match = _BLOCK.fullmatch(name)
        if match is None:
            continue
        folder = name[: match.end("mag")]
        if folder not in mags:
            with reading(f"{file}/{name}", "annotation"):
                mags[folder] = Mag.parse(match["mag"])
        blocks = stored.setdefault(folder, [])
        if match["x"] is not None:
            blocks.append((int(match["z"]), int(match["y"]), int(match["x"])))
    if len(set(mags.values())) != len(mags):
        raise FormatError(f"{file}: contains a mag twice: {', '.join(sorted(mags))}")
    return {
        folder: (mags[folder], np.array(sorted(blocks), np.int64).reshape(-1, 3)[:, ::-1])
        for folder, blocks in stored.items()
    }


def find_mag(mags: list[AnnotationMag], wanted: Mag) -> AnnotationMag | None:
    """Return one mag of an annotation, or None if the annotation has no blocks at all."""
    matching = next((mag for mag in mags if mag.mag == wanted), None)
    if matching is None and mags:
        raise MissingError(
            f"{mags[0].file}: no blocks of mag {wanted}; there are blocks of "
            f"{', '.join(str(mag.mag) for mag in mags)}"
        )
    return matching


_MAX_COORDINATE = 2**53  # larger coordinates are not exact in float64


def read_nodes(path: str) -> tuple[IntArray, IntArray]:
    """Read the nodes of all trees of an NML: number of the tree, shape (n,), and voxel of mag 1,
    shape (n, 3)."""
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
                positions.append(
                    (
                        float(element.attrib["x"]),
                        float(element.attrib["y"]),
                        float(element.attrib["z"]),
                    )
                )
            elif element.tag == "thing":
                element.clear()
    if root is None or root.tag != "things":
        raise FormatError(
            f"{path}: the root element is <{'' if root is None else root.tag}>, expected <things> "
            "of an NML"
        )
    voxels = np.array(positions, np.float64).reshape(-1, 3)
    far = np.flatnonzero(~(np.abs(voxels) < _MAX_COORDINATE).all(axis=1))  # also true for nan
    if len(far):
        raise FormatError(
            f"{path}: node {far[0] + 1} lies at {', '.join(f'{n:g}' for n in voxels[far[0]])}, "
            "outside of any volume"
        )
    return np.array(trees, np.int64), np.floor(voxels).astype(np.int64)


@dataclass(frozen=True, slots=True)
class MergedVolume(Overlaid):
    """A mag merged with annotations: each block comes from the last annotation that stores it,
    zeros included, or else from the mag.

    Later annotations replace earlier ones block by block::

        base          a b c d
        annotation 1  . B . D
        annotation 2  . . . E
        merged        a B c E
    """

    base: StoredArray
    annotations: tuple[AnnotationMag, ...]
    """Annotations in order; a later one replaces blocks of earlier ones."""
    box: BoundingBox
    """Box of the result [voxels of the mag]; outside of the base's box, only annotations have
    voxels."""

    dtype = delegate_to("base", "dtype")
    num_channels = delegate_to("base", "num_channels")
    chunk_shape = delegate_to("base", "chunk_shape")
    shard_shape = delegate_to("base", "shard_shape")
    name = delegate_to("base", "name")
    is_current = delegate_to("base", "is_current")
    count = delegate_to("base.files", "count")
    shard_path = delegate_to("base.files", "shard_path")
    origin = (0, 0, 0)
    is_regular = True
    lengths_nm = None

    @property
    def token(self) -> tuple[Any, ...]:
        return ("merged", self.base.token, self.annotations, self.box)

    @property
    def content_token(self) -> tuple[Any, ...]:
        return ("merged", *self.base.content_token, self.annotations, self.box)

    def moved(self, shift: Vec3) -> MergedVolume:
        """Return self: a merge is written as WKW, whose file grid starts at voxel 0 too."""
        assert not any(shift)
        return self

    def read_into(
        self, out: AnyArray, topleft: Vec3, first_channel: int = 0, *, fill_zeros: bool = True
    ) -> int:
        if not out.size:
            return 0
        box = BoundingBox(topleft, (out.shape[1], out.shape[2], out.shape[3]), self.box.mag)
        blocks = [
            (annotation, _index(row))
            for annotation in self.annotations
            for row in annotation.blocks_in(box)
        ]
        boxes = [_block_box(annotation, index) for annotation, index in blocks]
        # Everything before the last block that covers the whole request is overwritten, so it need
        # not be read.
        covering = [number for number, block_box in enumerate(boxes) if block_box.contains(box)]
        first = max(covering, default=0)
        nonzero = (
            0
            if covering
            else self._read_base(out, box, first_channel, fill_zeros=fill_zeros or bool(blocks))
        )
        for (annotation, index), block_box in zip(blocks[first:], boxes[first:], strict=True):
            voxels = annotation.read_block(index, self.dtype)[
                first_channel : first_channel + out.shape[0]
            ]
            inside = block_box.intersection(box)
            part = part_of_array(voxels, inside, block_box.topleft)
            part_of_array(out, inside, topleft)[...] = part
            nonzero += bool(part.any())
        return nonzero

    def _read_base(
        self, out: AnyArray, box: BoundingBox, first_channel: int, *, fill_zeros: bool
    ) -> int:
        """Fill an array from the base, with zeros outside of the base's box."""
        inside = box if self.box == self.base.box else box.intersection(self.base.box)
        if inside == box:
            return self.base.read_into(out, box.topleft, first_channel, fill_zeros=fill_zeros)
        out[...] = 0
        if inside.is_empty:
            return 0
        return self.base.read_into(
            part_of_array(out, inside, box.topleft), inside.topleft, first_channel
        )

    def annotated_cells(self, box: BoundingBox, cell_shape: Vec3) -> CellMap:
        """Mark the cells of a grid, within a box, that contain voxels of annotated blocks."""
        ranges = cell_range(box, cell_shape)
        marked = cell_map(box, cell_shape, self.name)
        for annotation in self.annotations:
            step = annotation.header.block_len
            # Cells and blocks nest. Visit the larger of the two, so that many blocks in one cell
            # count once.
            for row in np.unique(
                annotation.blocks_in(box) * step // np.maximum(cell_shape, step), axis=0
            ).tolist():
                edges = np.maximum(cell_shape, step)
                first = [
                    max(t, n * edge) // c - r.start
                    for t, n, edge, c, r in zip(
                        box.topleft, row, edges, cell_shape, ranges, strict=True
                    )
                ]
                last = [
                    -(-min(b, (n + 1) * edge) // c) - r.start
                    for b, n, edge, c, r in zip(
                        box.bottomright, row, edges, cell_shape, ranges, strict=True
                    )
                ]
                marked[tuple(slice(a, b) for a, b in zip(first, last, strict=True))] = True
        return marked

    @property
    def files(self) -> MergedVolume:
        """The volume itself, which lists the files of the base and of the annotations."""
        return self

    @property
    def written(self) -> FileState | None:
        return self.base.files.written

    def occupied(self, cell_shape: Vec3) -> CellMap:
        return union_cells(
            self.base.cropped(self.box).files.occupied(cell_shape),
            self.annotated_cells(self.box, cell_shape),
        )

    def shard_states(self, box: BoundingBox) -> States:
        """Return the states of the stored files that a box touches; each annotation adds one row
        for every file that it has blocks for."""
        inside = box.intersection(self.box)
        return np.concatenate(
            [
                self.base.cropped(self.box).files.shard_states(inside),
                *self._annotated_states(inside),
            ]
        )

    def stored_states(self) -> States:
        return np.concatenate(
            [self.base.cropped(self.box).files.stored_states(), *self._annotated_states(self.box)]
        )

    def _annotated_states(self, box: BoundingBox) -> Iterator[States]:
        for annotation in self.annotations:
            shards = np.unique(
                annotation.blocks_in(box) * annotation.header.block_len // self.shard_shape[0],
                axis=0,
            ).reshape(-1, 3)
            yield np.concatenate(
                [shards, np.tile(np.array(annotation.state, np.int64), (len(shards), 1))], axis=1
            )


def _block_box(annotation: AnnotationMag, index: Vec3) -> BoundingBox:
    step = annotation.header.block_len
    return BoundingBox(
        (index[0] * step, index[1] * step, index[2] * step), (step, step, step), annotation.mag
    )


def _index(row: IntArray) -> Vec3:
    x, y, z = row.tolist()
    return x, y, z
