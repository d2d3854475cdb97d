"""Writing jobs whose targets are WKW mags: from what a user asks for to what is staged."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import MissingError
from wkwdask.formats.wkw.header import BlockType, WkwHeader, make_header
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag, Vec3
from wkwdask.jobs.places import check_inside_dataset, edit_for, place_of
from wkwdask.jobs.staged import StagedMags, check_existing, settings_of
from wkwdask.kernels.window import METHODS
from wkwdask.plans.mag_ladder import default_coarsest, mag_ladder
from wkwdask.plans.pyramid import check_steps
from wkwdask.storage.dataset import choose_layer, locate
from wkwdask.storage.job_folder import LayerEdit, Owner
from wkwdask.storage.local import is_remote
from wkwdask.storage.wkw_target import WkwTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.storage.dataset import Layer
    from wkwdask.storage.wkw import WkwVolume

_METHOD_OF_CATEGORY = {"color": "median", "segmentation": "mode"}


@dataclass(frozen=True, slots=True)
class WkwEncoding:
    """How a new mag is to be stored."""

    block_len: int
    """Edge of a block [voxels]."""
    file_len: int
    """Edge of a file [blocks]."""
    compression: str
    """``"lz4hc"``, ``"lz4"`` or ``"raw"``."""
    level: int
    """LZ4HC level."""
    any_length: bool = False
    """Allow lengths that the reference library cannot read."""

    def header(self, dtype: Any, num_channels: int) -> WkwHeader:
        """Make the header of a mag of some type.

        Raises
        ------
        TypeError
            WKW has no voxel type for the dtype.
        ValueError
            An option makes no sense.
        """
        check_level(self.level)
        block_type = BlockType.parse(self.compression)
        return make_header(dtype, num_channels, block_len=self.block_len, file_len=self.file_len, block_type=block_type, any_length=self.any_length)


def check_level(level: int) -> None:
    """Make sure that an LZ4HC level is one that there is.

    Raises
    ------
    ValueError
        It is not.
    """
    if not 1 <= level <= 12:
        raise ValueError(f"level must be in 1..12, got {level}")


def stage_write(
    url: str | os.PathLike[str], topleft: Vec3, shape: Sequence[int], dtype: Any, encoding: WkwEncoding, existing: str, category: str | None
) -> StagedMags:
    """Check and lay out the writing of an array as one mag.

    Parameters
    ----------
    url : str or path
        The mag's folder.
    topleft : tuple of 3 int
        Absolute voxel of the mag that element 0 goes to.
    shape : sequence of 4 int
        Shape of the array, (c, x, y, z).
    dtype : dtype_like
        Type of one channel.
    encoding : WkwEncoding
        How the mag is stored.
    existing : str
        ``"error"`` or ``"overwrite"``.
    category : str, optional
        What a new layer is.

    Returns
    -------
    StagedMags

    Raises
    ------
    TypeError
        WKW has no voxel type for the dtype.
    ValueError
        An option makes no sense, or the layer has another type.
    UnsupportedError
        The folder leaves its dataset.
    """
    check_existing(existing)
    if category not in (None, "color", "segmentation"):
        raise ValueError(f'category must be "color" or "segmentation", got {category!r}')
    header = encoding.header(dtype, shape[0])
    place = place_of(url)
    box = BoundingBox(topleft, (shape[1], shape[2], shape[3]), place.mag)
    settings = settings_of(
        "to_wkw", folder=place.folder, box=box, dtype=header.dtype.name, channels=header.num_channels, block_len=encoding.block_len,
        file_len=encoding.file_len, compression=encoding.compression, level=encoding.level, existing=existing,
    )  # fmt: skip
    owner = Owner.this_process(f"to_wkw into {place.folder}")
    target = _target(owner, place.layer.folder, header, encoding.level, box)
    edit = edit_for(place, header, box, category)
    return StagedMags(owner, place.layer.folder, (target,), (place.folder,), box.volume * header.voxel_nbytes, edit, settings, existing)


@dataclass(frozen=True, slots=True)
class StagedPyramid:
    """A pyramid that can be built."""

    source: WkwVolume
    """The finest mag."""
    layer_box: BoundingBox
    """Where the layer has data."""
    method: str
    """How a window becomes a voxel."""
    staged: StagedMags
    """What is written; no targets where the finest mag is the coarsest already."""


def stage_pyramid(
    url: str | os.PathLike[str], layer_name: str | None, method: str, coarsest: Mag | None, compression: str | None, level: int, existing: str
) -> StagedPyramid:
    """Check and lay out the building of a pyramid.

    Parameters
    ----------
    url : str or path
        A dataset or a layer; a mag's folder makes that mag the finest.
    layer_name : str, optional
        The layer.
    method : str
        ``"default"`` or one of ``wkwdask.kernels.window.METHODS``.
    coarsest : Mag, optional
        Where the pyramid ends.
    compression : str, optional
        How blocks are encoded; by default as in the source, LZ4HC if that is raw.
    level : int
        LZ4HC level.
    existing : str
        ``"error"`` or ``"overwrite"``.

    Returns
    -------
    StagedPyramid

    Raises
    ------
    MissingError
        There is no such layer, or it has no files.
    UnsupportedError
        A step is not 1 or 2 on some axis, or a mag's path leaves the dataset.
    ValueError
        An option makes no sense.
    """
    check_existing(existing)
    check_level(level)
    located = locate(url)
    layer = choose_layer(located, layer_name)
    source = layer.volume(located.mag if located.mag is not None else layer.finest_mag())
    if not source.has_shards():
        raise MissingError(f"{source.folder}: the mag has no data files")
    method = _method(layer, method)
    mags = _mags(layer, source, coarsest)
    check_steps(source.box.mag, mags)
    folders = tuple(_mag_folder(layer, mag) for mag in mags)
    _check_apart(layer, source, mags, folders)
    header = source.header.with_block_type(_block_type(source, compression))
    layer_box = layer.record.bounding_box if layer.record is not None else source.box
    owner = Owner.this_process(f"build_pyramid of {layer.folder}")
    targets = tuple(_target(owner, layer.folder, header, level, layer_box.in_mag(mag)) for mag in mags)
    settings = settings_of(
        "build_pyramid", folder=layer.folder, source=source.box.mag, box=source.box, mags=",".join(mag.name for mag in mags), method=method,
        compression=header.block_type.label, level=level, existing=existing,
    )  # fmt: skip
    edit = _edit(layer, mags, folders, header)
    nbytes_in = source.box.volume * header.voxel_nbytes
    return StagedPyramid(source, layer_box, method, StagedMags(owner, layer.folder, targets, folders, nbytes_in, edit, settings, existing))


def _target(owner: Owner, parent: str, header: WkwHeader, level: int, box: BoundingBox) -> WkwTarget:
    folder = StagedMags.staged_folder(owner, parent, box.mag.long_name)
    return WkwTarget(folder, f"{folder}.parts", header, level, box)


def _edit(layer: Layer, mags: Sequence[Mag], folders: Sequence[str], header: WkwHeader) -> LayerEdit | None:
    dataset = layer.dataset_folder
    if dataset is None or layer.record is None:
        return None
    return LayerEdit(
        dataset, layer.name, tuple((mag, f"./{os.path.relpath(path, dataset)}", header.file_len_vx) for mag, path in zip(mags, folders, strict=True))
    )


def _mags(layer: Layer, source: WkwVolume, coarsest: Mag | None) -> list[Mag]:
    """Choose the mags of a pyramid."""
    box = layer.record.bounding_box if layer.record is not None else source.box.in_mag(Mag(1, 1, 1))
    voxel_size = layer.datasource.voxel_size_nm if layer.datasource is not None else None
    others = [] if layer.datasource is None else [entry.mag for other in layer.datasource.layers if other.name != layer.name for entry in other.mags]
    sampling = "constant_z" if source.box.size[2] == 1 else "anisotropic"  # a single section stays one
    return mag_ladder(source.box.mag, coarsest if coarsest is not None else default_coarsest(box), voxel_size, sampling, others)


def _mag_folder(layer: Layer, mag: Mag) -> str:
    """Say where a coarser mag goes: where the JSON has it, else into the layer's folder."""
    folder = layer.mags.get(mag, f"{layer.folder}/{mag.name}")
    check_inside_dataset(layer, folder)
    return folder


def _check_apart(layer: Layer, source: WkwVolume, mags: Sequence[Mag], folders: Sequence[str]) -> None:
    """Refuse a JSON by which a new mag would take the place of other data."""
    known = {source.folder: source.box.mag} | {folder: mag for mag, folder in layer.mags.items() if mag not in mags}
    others = [os.path.realpath(folder) for folder in known if not is_remote(folder)]
    for number, folder in enumerate(folders):
        real = os.path.realpath(folder)
        for other in others + [os.path.realpath(before) for before in folders[:number]]:
            if os.path.commonpath([real, other]) in (real, other):
                raise ValueError(f"{folder}: mag {mags[number]} would take the place of {other}; the paths in the JSON overlap")


def _method(layer: Layer, method: str) -> str:
    if method == "default":
        if layer.record is None:
            raise ValueError(
                f"{layer.folder}: no datasource-properties.json says what kind of layer this is; give method= (median or mean for images, mode for labels)"
            )
        return _METHOD_OF_CATEGORY[layer.record.category]
    if method not in METHODS:
        raise ValueError(f'method must be "default" or one of {", ".join(METHODS)}, got {method!r}')
    return method


def _block_type(source: WkwVolume, compression: str | None) -> BlockType:
    if compression is not None:
        return BlockType.parse(compression)
    return source.header.block_type if source.header.is_compressed else BlockType.LZ4HC
