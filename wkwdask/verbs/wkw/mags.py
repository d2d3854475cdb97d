"""Mags that are made from another mag of their layer: that mag, their folders, their header, and what the JSON is to say."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import FormatError, IncompleteWriteError, MissingError
from wkwdask.formats.webknossos.dataset import locate, wkw_volume
from wkwdask.formats.webknossos.layer_edit import LayerEdit
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.formats.wkw.volume import WkwVolume
from wkwdask.plans.cells import SparseCells
from wkwdask.plans.mag_ladder import check_one_ladder
from wkwdask.store import files
from wkwdask.store.paths import is_below, is_remote
from wkwdask.verbs.wkw.places import check_inside_dataset, json_path, real_folder
from wkwdask.verbs.wkw.write import header_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.volume import StoredVolume, Volume

# Files of single blocks are what WEBKNOSSOS exports of annotations. As many new ones would cost far more than their voxels; much larger ones, where
# labels are scattered, hold little but zeros.
_FILE_LEN_AFTER_SINGLE_BLOCKS = 8
_SAMPLED_FILES = 256


@dataclass(frozen=True, slots=True)
class NewMagsOptions:
    """What a user may choose of mags that are made from another one; None is the default that the fields of the function describe."""

    mags: tuple[Mag, ...] | None = None
    """The mags to make."""
    stored: WkwOptions = field(default_factory=WkwOptions)
    """How they are stored."""
    allow_external: bool = False
    """Whether mags may be written outside of the dataset."""


def open_source(
    url: str | os.PathLike[str],
    layer_name: str | None,
    mag: Mag | None,
    option: str,
    default: Callable[[Image], Mag | None] = lambda _: None,
    *,
    allow_external: bool = False,
) -> tuple[Image, WkwVolume]:
    """Open the mag that others are made from."""
    located = locate(url, allow_external=allow_external)
    if mag is not None and located.mag not in (None, mag):
        raise ValueError(f"{os.fspath(url)}: is mag {located.mag}, but {option}= says {mag}")
    layer = located.pick(layer_name)
    source = wkw_volume(layer, mag or located.mag or default(layer))
    if not source.has_shards():
        raise MissingError(f"{source.folder}: the mag has no data files")
    return layer, source


def box_setting(box: BoundingBox) -> str:
    """Write down a box [voxels of its mag]."""
    return ",".join(map(str, (*box.topleft, *box.size)))


def source_token(source: Volume) -> str:
    """Name the source so that another one in its place has another name; the same mag in WKW has the same one elsewhere."""
    values = (source.header, source.box, source.state[1]) if isinstance(source, WkwVolume) else source.token
    return hashlib.blake2b(repr(values).encode(), digest_size=8).hexdigest()


def presence(source: Volume, cell_shapes: Iterable[Vec3]) -> str:
    """Name which cells of some grids touch a stored file: a file that appears in an empty cell, or the last one that goes, changes it."""
    state = hashlib.blake2b(digest_size=8)
    for shape in cell_shapes:
        found = source.occupied(shape)
        state.update(found.places().tobytes() if isinstance(found, SparseCells) else np.packbits(found).tobytes())
    return state.hexdigest()


def check_not_replaced(source: StoredVolume) -> None:
    """Make sure that a source that was read is still the one that is there."""
    if not is_current(source):
        raise IncompleteWriteError(f'{source.name}: was replaced while it was read; existing="overwrite" starts anew with what is there now')


def is_current(source: StoredVolume) -> bool:
    """Tell whether a source that was read is still the one that is there."""
    return source.is_current()


def stored_nbytes(source: WkwVolume) -> tuple[int, int]:
    """Count the files of a mag, and estimate their bytes from the sizes of some of them."""
    num_files = sampled = nbytes = 0
    for index in source.shards():
        num_files += 1
        if sampled < _SAMPLED_FILES:
            with contextlib.suppress(FileNotFoundError):
                nbytes += files.stat(source.shard_path(index)).st_size
                sampled += 1
    return num_files, nbytes * num_files // max(1, sampled)


def aligned_mags(layer: Image, align_with: str | bool) -> list[Mag]:
    """List the mags of the layers that a ladder follows."""
    if align_with is False:
        return []
    layers = [] if layer.container.datasource is None else [other for other in layer.container.datasource.layers if other.name != layer.name]
    if align_with is not True:
        layers = [other for other in layers if other.name == align_with]
        if not layers:
            raise MissingError(f"{layer.container.dataset_folder or layer.folder}: no other layer {align_with!r} to align with")
    return [entry.mag for other in layers for entry in other.mags]


def mag_folder(layer: Image, mag: Mag) -> str:
    """Say where a mag goes or is: where the JSON has it, else in the layer's folder."""
    folder = layer.mags.get(mag, f"{layer.folder}/{mag.name}")
    check_inside_dataset(layer, folder)
    return real_folder(layer, folder)


def header_like(source: WkwVolume, stored: WkwOptions, box: BoundingBox, largest: int = 1) -> WkwHeader:
    """Choose how a new mag is stored: what is not given as in the mag that it is made from, but raw becomes LZ4HC."""
    before = source.header
    largest = max(largest, before.file_len) if before.file_len > 1 else _FILE_LEN_AFTER_SINGLE_BLOCKS
    return header_for(stored, before.dtype, before.num_channels, box, before, largest)


def edit_of(layer: Image, mags: Sequence[Mag], folders: Sequence[str], headers: Sequence[WkwHeader]) -> LayerEdit | None:
    """Say what the JSON is to list once the mags are there, None without a JSON."""
    check_one_ladder(layer.folder, layer.mags, mags)
    dataset = layer.container.dataset_folder
    if dataset is None or layer.container.record is None:
        return None
    listed = tuple((mag, json_path(layer, mag, folder), header.file_len_vx) for mag, folder, header in zip(mags, folders, headers, strict=True))
    return LayerEdit(dataset, layer.name, listed, is_listed=True)


def check_apart(layer: Image, source: WkwVolume, mags: Sequence[Mag], folders: Sequence[str]) -> None:
    """Refuse a JSON by which a new mag would take the place of other data."""
    known = {source.folder: source.box.mag} | {folder: mag for mag, folder in layer.mags.items() if mag not in mags}
    others = [files.realpath(folder) for folder in known if not is_remote(folder)]
    for number, folder in enumerate(folders):
        real = files.realpath(folder)
        for other in others + [files.realpath(before) for before in folders[:number]]:
            if is_below(real, other) or is_below(other, real):
                raise FormatError(f"{folder}: mag {mags[number]} would take the place of {other}; the paths in the JSON overlap")
