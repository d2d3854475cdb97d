"""Staging N5 datasets: from what a user asks for to what is staged, for arrays and for mags of any format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, ExistsError, UnsupportedError
from wkwdask.formats.n5.array import n5_placement, read_attributes
from wkwdask.formats.n5.attribute_edits import LevelPlace, dataset_document
from wkwdask.formats.n5.attributes import DTYPES, FILE_NAME, LARGEST_BLOCK, N5Dataset, is_dataset
from wkwdask.formats.n5.compression import make_compression
from wkwdask.formats.n5.layer import location_of, stripped
from wkwdask.formats.n5.metadata_edit import N5Edit
from wkwdask.formats.n5.placement import lengths_of, level_attributes, level_number
from wkwdask.formats.precomputed.layer import holds_wkw
from wkwdask.geometry.bounding_box import MAG_1
from wkwdask.geometry.mag import Mag, Vec3
from wkwdask.runs.stage import check_existing, stage, stage_array
from wkwdask.runs.staged import settings_of
from wkwdask.store import files
from wkwdask.store.paths import basename, dirname, is_remote
from wkwdask.store.store import FolderStore, open_store
from wkwdask.verbs.foreign_import import imported_mag
from wkwdask.verbs.rechunk import copied

if TYPE_CHECKING:
    import os

    from wkwdask.formats.n5.options import N5Options
    from wkwdask.model.levels import Lengths
    from wkwdask.model.placement import Placement
    from wkwdask.runs.content import Content
    from wkwdask.runs.stage import Draft
    from wkwdask.runs.staged import StagedMags
    from wkwdask.verbs.foreign_import import Import, Imported
    from wkwdask.verbs.rechunk import Copy, Rechunk

_COMMAND = "to_n5"
_CONVERT = "convert"
_LARGEST_BLOCK_LEN = (1 << 31) - 1


def new_dataset(stored: N5Options, size: Vec3, dtype: Any, num_channels: int) -> N5Dataset:
    """Describe a dataset."""
    options: Any = stored.of_new()
    native = np.dtype(dtype).newbyteorder("=")
    if native.name not in DTYPES:
        hint = {"bool": "uint8", "float16": "float32"}.get(native.name)
        advice = f'cast with .astype("{hint}")' if hint else "cast to one of these"
        raise TypeError(f"N5 has no type for {native.name}; it stores {', '.join(DTYPES)}: {advice}")
    channels = (num_channels,) if num_channels > 1 else ()
    block: Vec3 = options.chunk_shape
    dataset = N5Dataset((*size, *channels), (*block, *channels), native, make_compression(options.compression, options.level))
    if max(block) > _LARGEST_BLOCK_LEN or dataset.block_nbytes > LARGEST_BLOCK:
        raise ValueError(f"chunk_shape must be three lengths of a block of at most {LARGEST_BLOCK} bytes, got {block} of {native.name}")
    return dataset


@dataclass(frozen=True, slots=True)
class N5Place:
    """A local folder in which a dataset is or will be."""

    folder: str
    """The dataset."""
    root: str
    """Its container."""
    group: str | None
    """The group of which it is a level, None where it is by itself."""
    lengths_nm: Lengths | None
    """Edge lengths of a voxel of the group's finest level [nm], None where nobody says them."""

    @property
    def parent(self) -> str:
        """The folder above it."""
        return dirname(self.folder)


def n5_folder(url: str | os.PathLike[str]) -> str:
    """Turn what a user names into a local folder.

    Examples
    --------
    >>> n5_folder("n5:///data/em.n5/raw")
    '/data/em.n5/raw'
    """
    text = stripped(url)
    if is_remote(text):
        raise UnsupportedError(f"{text}: N5 is written to local folders only; write to one and copy it there, such as with gsutil or aws s3")
    return files.realpath(location_of(text))


def n5_place(folder: str, *, is_level: bool | None = None) -> N5Place:
    """Find out what is around a dataset that is written."""
    levels = level_number(basename(folder)) is not None if is_level is None else is_level
    for path in (folder, dirname(folder)) if levels else (folder,):
        if holds_wkw(path):
            raise ExistsError(f"{path}: holds WKW data; write N5 to a folder of its own")
    above, root = dirname(folder), None
    while above not in ("/", ""):
        document = read_attributes(FolderStore(above))
        if document is not None and is_dataset(document):
            raise ExistsError(f"{folder}: lies inside of the N5 dataset {above}, whose blocks are stored there")
        if root is None and ((document is not None and "n5" in document) or above.endswith(".n5")):
            root = above
        above = dirname(above)
    group = dirname(folder) if levels and (root is None or root != folder) else None
    return N5Place(folder, root or group or folder, group, None if group is None else _known_lengths(group))


def _known_lengths(group: str) -> Lengths | None:
    """Read the lengths of a voxel of the finest level that a group has already."""
    document = read_attributes(FolderStore(group)) or {}
    try:
        own = read_attributes(FolderStore(group), "s0") or {}
    except CorruptError:
        own = {}
    return lengths_of(level_attributes(own, document, "s0"), "xyz")


def other_levels(group: str, count: int, lengths_nm: Lengths | None) -> list[str]:
    """List the levels of a group that stay as they are where the first ones are written."""
    numbers = [number for number in map(level_number, files.listdir(group)) if number is not None] if files.isdir(group) else []
    others = [f"s{number}" for number in sorted(numbers) if number >= count and files.isfile(f"{group}/s{number}/{FILE_NAME}")]
    before = _known_lengths(group) if others else None
    if others and not (before is None and lengths_nm is None) and (before is None or lengths_nm is None or not np.allclose(before, lengths_nm, rtol=1e-6)):
        what = f"holds {', '.join(others)} too, which would not fit to voxels of {lengths_nm} nm in s0; those that are there are {before} nm long"
        raise ExistsError(f"{group}: {what}: choose another group, or remove it first")
    return others


def _staged_target(place: N5Place, dataset: N5Dataset, at: LevelPlace, mag: Mag, draft: Draft) -> tuple[Placement, N5Edit]:
    staged = draft.staged("dataset")
    document = dataset_document(dataset, at, is_level=place.group is not None, is_root=place.root == place.folder)
    target = n5_placement(open_store(staged), open_store(f"{staged}.parts"), replace(dataset, document=document), mag, at.offset)
    return target, N5Edit(place.root, place.group, basename(place.folder), len(dataset.dimensions), at)


def _place_settings(dataset: N5Dataset, at: LevelPlace) -> dict[str, Any]:
    """Write down how and where a dataset is stored."""
    return {
        "dataset": dataset.to_json(),
        "mag": at.mag.name,
        "offset": list(at.offset),
        "voxel_size": None if at.base_lengths_nm is None else list(at.base_lengths_nm),
    }


def lay_out_n5_array(
    url: str | os.PathLike[str], offset: Vec3, content: Content, stored: N5Options, existing: str, mag: Mag | None = None, lengths_nm: Lengths | None = None
) -> StagedMags:
    """Check and lay out the writing of an array as one dataset."""
    check_existing(existing)
    place = n5_place(n5_folder(url))
    num_channels, width, height, depth = content.shape
    dataset = new_dataset(stored, (width, height, depth), content.dtype, num_channels)
    at = LevelPlace(mag or Mag(1, 1, 1), offset, lengths_nm or place.lengths_nm)
    settings = {**settings_of(_COMMAND, folder=place.folder), **_place_settings(dataset, at)}
    draft = stage_array(f"{_COMMAND} into {place.folder}", place.parent, place.folder, settings, existing, content)
    target, edit = _staged_target(place, dataset, at, at.mag, draft)
    nbytes_in = width * height * depth * num_channels * dataset.dtype.itemsize
    return draft.mags([target], nbytes_in, edit, goes_on_by_itself=False, not_compared=content.not_compared)


def lay_out_n5_copy(folder: str, copy: Copy, stored: N5Options, lengths_nm: Lengths | None, mag: Mag, existing: str, workers: int) -> Rechunk:
    """Check and lay out the making of one level of the voxels of a volume, or find the interrupted job that is to go on."""
    draft, staged = _level(folder, copy.source, stored, lengths_nm, mag, existing, copy.input)
    return copied(copy, draft, staged, workers)


def lay_out_n5_import(folder: str, imported: Imported, stored: N5Options, lengths_nm: Lengths | None, existing: str, workers: int) -> Import:
    """Check and lay out the making of a group's finest level of images or an array; parameters and errors as for :func:`lay_out_n5_copy`."""
    draft, staged = _level(folder, imported.source, stored, lengths_nm, MAG_1, existing, imported.settings)
    return imported_mag(imported, draft, staged, workers)


def _level(folder: str, source: Any, stored: N5Options, lengths_nm: Lengths | None, mag: Mag, existing: str, known: dict[str, Any]) -> tuple[Draft, StagedMags]:
    """Lay out a level that has the voxels of a source."""
    place = n5_place(folder, is_level=True)
    dataset = new_dataset(stored, source.box.size, source.dtype, source.num_channels)
    at = LevelPlace(mag, source.box.topleft, lengths_nm)
    settings = {**settings_of(_CONVERT, folder=place.folder), **_place_settings(dataset, at), **known}
    draft = stage(f"{_CONVERT} into {place.folder}", place.parent, [place.folder], settings, existing)
    target, edit = _staged_target(place, dataset, at, source.box.mag, draft)
    return draft, draft.mags([target], source.box.volume * source.num_channels * source.dtype.itemsize, edit)
