"""Planning of the merge of volume annotations into a WKW mag: mag, ids and box."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import UnsupportedError
from wkwdask.formats.edits import Edits
from wkwdask.formats.webknossos.annotation import MergedVolume, find_mag, open_annotation
from wkwdask.formats.webknossos.copies import DatasetCopies
from wkwdask.formats.webknossos.dataset import dataset_of, locate
from wkwdask.formats.webknossos.datasource import NewLayer, format_segment_id, largest_segment_id
from wkwdask.formats.webknossos.layer_edit import LayerEdit
from wkwdask.formats.webknossos.target import mag_target
from wkwdask.geometry.bounding_box import MAG_1, BoundingBox, part_of_array
from wkwdask.geometry.mag import mag_order
from wkwdask.model.summary import counted
from wkwdask.model.writing.target_image import Destination, LevelSpec
from wkwdask.store.paths import dirname, local_path
from wkwdask.verbs.rechunk import lay_out
from wkwdask.verbs.sources import token_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.formats.webknossos.annotation import AnnotationMag
    from wkwdask.formats.webknossos.target import MagTarget
    from wkwdask.geometry.mag import Mag
    from wkwdask.model.image import Image
    from wkwdask.model.metadata_edit import MetadataEdit
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.model.writing.target_image import LevelCopy
    from wkwdask.verbs.rechunk import Rechunk, RechunkOptions

    Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Merge:
    """Annotations, and the mag into which they are merged."""

    move: LevelCopy
    """Mag, and target of the result."""
    annotations: tuple[AnnotationMag, ...]
    """Annotations with blocks; later ones override earlier ones."""
    box: BoundingBox
    """Box of the result [voxels of the mag]."""
    largest: int | None
    """Largest id of the result, None if that of the base is unknown."""
    notes: tuple[str, ...]

    @property
    def target(self) -> str:
        assert self.move.destination is not None
        return self.move.destination.url

    @property
    def note(self) -> str:
        """All notes, and the remaining step."""
        return "; ".join(
            [*self.notes, f"coarser mags are not made: wkwdask pyramid {dirname(self.target)}"]
        )


@dataclass(frozen=True, slots=True)
class _Scan:
    """Result of reading all blocks of an annotation."""

    largest: int
    outside: BoundingBox
    """Smallest box around all nonzero voxels outside of the base's box."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """Selection of the base's mag and of the annotations' volume layers."""

    layer: str | None = None
    mag: Mag | None = None
    relabel: bool | int = False
    """Whether new ids of different annotations are made distinct; or the largest id of the base."""
    volume_layer: str | None = None
    """Volume layer of each annotation."""


def find_merge(
    base: Path, annotations: Sequence[Path], target: Path, options: MergeOptions
) -> Merge:
    """Select the mag and the annotations, read all blocks of the annotations once, and choose
    ids."""
    located, layer = locate(base), options.layer
    if layer is None and len(located.layers) > 1:
        labels = [image.name for image in located.layers if image.category == "segmentation"]
        layer = labels[0] if len(labels) == 1 else None
    base_name = located.choose_listed(layer).name
    opened = [open_annotation(url, base_name, options.volume_layer) for url in annotations]
    mags = sorted(
        (stored.mag for stored_mags, _ in opened for stored in stored_mags), key=mag_order
    )
    mag = options.mag or located.mag or (mags[0] if mags else None)
    if mag is None:
        raise ValueError(
            f"no block is stored in {', '.join(os.fspath(url) for url in annotations)}: nothing to "
            "merge"
        )
    (move,) = DatasetCopies().levels(
        located, local_path(target), None if located.mag is not None else [base_name], [mag]
    )
    selected = [
        (find_mag(stored_mags, mag), os.fspath(url))
        for (stored_mags, _), url in zip(opened, annotations, strict=True)
    ]
    with_blocks = [annotation for annotation, _ in selected if annotation is not None]
    merge = _plan_ids(
        move,
        with_blocks,
        [url for annotation, url in selected if annotation is None],
        options.relabel,
    )
    return replace(merge, notes=(*(note for _, note in opened if note), *merge.notes))


def _plan_ids(
    move: LevelCopy, annotations: Sequence[AnnotationMag], empty: Sequence[str], relabel: bool | int
) -> Merge:
    source = move.image.volume(move.level.mag)
    for annotation in annotations:
        _check_type(annotation, source)
    scans = [_scan(annotation, source) for annotation in annotations]
    box = source.box
    for scan in scans:
        box = box.union(scan.outside)
    known = _largest_known(move.image, relabel)
    largest = None if known is None else max([known, *(scan.largest for scan in scans)])
    if relabel is False:
        return Merge(move, tuple(annotations), box, largest, _notes_on_empty(empty))
    if known is None:
        raise ValueError(
            f"{source.folder}: relabel requires the largest id of the base, which its JSON does "
            "not state; set relabel to that number"
        )
    for annotation in annotations:
        _check_known(annotation, source, known)
    moved, largest, notes = _relabelled(annotations, scans, known)
    if largest > np.iinfo(source.dtype).max:
        raise UnsupportedError(
            f"{source.folder}: ids up to {largest} do not fit into {source.dtype.name}"
        )
    return Merge(move, moved, box, largest, (*notes, *_notes_on_empty(empty)))


def _notes_on_empty(empty: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"no block is stored in {url}" for url in empty)


def lay_out_merge(merge: Merge, options: RechunkOptions, existing: str, workers: int) -> Rechunk:
    move, source = merge.move, merge.move.image.volume(merge.move.level.mag)
    record = dataset_of(move.image).record
    category = "segmentation" if record is None else record.category
    target = mag_target(
        Destination(
            merge.target,
            category=category,
            needs_container=False,
            allow_external=options.allow_external,
        )
    )
    volume = MergedVolume(source, merge.annotations, merge.box)
    levels = target.new_levels(
        [LevelSpec.like(volume, is_copy=True)], options.stored, source.cropped(merge.box)
    )
    levels = replace(
        levels,
        edit=_edit(move, target, levels.edit, merge),
        settings={**levels.settings, "annotations": _token(merge.annotations)},
    )
    return lay_out(source, volume, levels, options, existing, workers)


def _check_type(annotation: AnnotationMag, source: StoredArray) -> None:
    header = annotation.header
    if header.num_channels != source.num_channels or not np.can_cast(header.dtype, source.dtype):
        raise UnsupportedError(
            f"{annotation.name}: holds {header.dtype.name} in "
            f"{counted(header.num_channels, 'channel')}, "
            f"which {source.folder}, {source.dtype.name} in {source.num_channels}, cannot hold"
        )
    if source.dtype.kind not in "iu":
        raise UnsupportedError(
            f"{source.folder}: holds {source.dtype.name}; annotations are merged into whole numbers"
        )


def _scan(annotation: AnnotationMag, source: StoredArray) -> _Scan:
    """Read all blocks of an annotation once."""
    largest, step = 0, annotation.header.block_len
    outside = BoundingBox((0, 0, 0), (0, 0, 0), source.box.mag)
    for row in annotation.blocks().tolist():
        voxels = annotation.read_block((row[0], row[1], row[2]), source.dtype)
        largest = max(largest, int(voxels.max()))
        block = BoundingBox(
            (row[0] * step, row[1] * step, row[2] * step), (step, step, step), source.box.mag
        )
        if not source.box.contains(block):
            # the box of the result grows by voxels, not by whole blocks
            outside = outside.union(_nonzero_outside((voxels != 0).any(axis=0), block, source.box))
    return _Scan(largest, outside)


def _nonzero_outside(voxels: Any, block: BoundingBox, box: BoundingBox) -> BoundingBox:
    """Return the smallest box around the nonzero voxels of a block that lie outside of a box."""
    inside = block.intersection(box)
    if not inside.is_empty:
        part_of_array(voxels, inside, block.topleft)[...] = False
    places = np.argwhere(voxels)
    if not len(places):
        return BoundingBox((0, 0, 0), (0, 0, 0), box.mag)
    return BoundingBox.from_corners(
        (places.min(axis=0) + block.topleft).tolist(),
        (places.max(axis=0) + 1 + block.topleft).tolist(),
        box.mag,
    )


def _largest_known(layer: Image, relabel: bool | int) -> int | None:
    if relabel is not True and relabel is not False:
        if not isinstance(relabel, int) or relabel < 0:
            raise ValueError(
                "relabel must be True, False or the largest id of the base (an integer >= 0), got "
                f"{relabel!r}"
            )
        return relabel
    record = dataset_of(layer).record
    return None if record is None else largest_segment_id(record.attributes)


def _check_known(annotation: AnnotationMag, source: StoredArray, known: int) -> None:
    """Check that no new id exists in the same block of the base. In many datasets the JSON states
    too small a largest id."""
    step = annotation.header.block_len
    before = np.empty((source.num_channels, step, step, step), source.dtype, order="F")
    for row in annotation.blocks().tolist():
        voxels = annotation.read_block((row[0], row[1], row[2]), source.dtype)
        new = np.unique(voxels[voxels > known])
        if len(new):
            source.read_into(before, (row[0] * step, row[1] * step, row[2] * step))
            old = new[np.isin(new, before)]
            if len(old):
                raise ValueError(
                    f"{source.folder}: contains id {old[0]}, although its largest id is stated as "
                    f"{known}; set relabel to the true largest id"
                )


def _relabelled(
    annotations: Sequence[AnnotationMag], scans: Sequence[_Scan], known: int
) -> tuple[tuple[AnnotationMag, ...], int, list[str]]:
    """Shift the new ids of each annotation, those above all ids of the base, so that they follow
    the ids of the previous annotations."""
    moved, notes, shift = [], [], 0
    for annotation, scan in zip(annotations, scans, strict=True):
        # known = 100, new ids of two annotations:  a: 101..103 -> 101..103,  b: 101..102 -> 104..105  # noqa: E501
        moved.append(replace(annotation, largest_layer_id=known, id_offset=shift))
        new = max(0, scan.largest - known)
        if new and shift:
            notes.append(
                f"{annotation.file}: ids {known + 1} to {known + new} became {known + shift + 1} "
                f"to {known + shift + new}"
            )
        shift += new
    return tuple(moved), known + shift, notes


def _edit(
    move: LevelCopy, target: MagTarget, edit: MetadataEdit | None, merge: Merge
) -> MetadataEdit | None:
    """Return the JSON edit: a new layer gets the attributes of the base, and the largest id is
    updated."""
    if isinstance(edit, Edits):
        *inner, outer = edit.edits  # the dataset comes after the documents of the layer
        return Edits.of(*inner, _edit(move, target, outer, merge))
    if not isinstance(edit, LayerEdit):
        return edit
    record, box = dataset_of(move.image).record, merge.box
    attributes = {} if record is None else dict(record.attributes)
    if merge.largest is not None:
        attributes["largestSegmentId"] = format_segment_id(merge.largest)
    existing = dataset_of(target.layer).record
    if edit.new_layer is None and existing is not None:
        edit = replace(
            edit,
            new_layer=NewLayer(
                existing.category,
                existing.bounding_box,
                existing.element_class,
                existing.num_channels,
            ),
        )
    if edit.new_layer is not None and record is not None:
        layer_box = (
            record.bounding_box
            if record.bounding_box.in_mag(box.mag).contains(box)
            else record.bounding_box.union(box.in_mag(MAG_1))
        )
        if existing is not None and any(entry.mag != move.level.mag for entry in existing.mags):
            layer_box = existing.bounding_box.union(layer_box)
        edit = replace(edit, new_layer=edit.new_layer._replace(box=layer_box))
    return replace(edit, attributes=attributes)


def _token(annotations: Sequence[AnnotationMag]) -> str:
    """Return a token that changes when the annotations do."""
    return token_of(
        [
            (mag.state, mag.folder, mag.header, mag.largest_layer_id, mag.id_offset)
            for mag in annotations
        ]
    )
