"""Staging a WKW pyramid: from what a user asks for to sources, targets, passes and the job."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.errors import MissingError
from wkwdask.formats.wkw.header import BlockType, WkwHeader, make_header
from wkwdask.geometry.mag import Mag, Vec3
from wkwdask.jobs.places import check_inside_dataset
from wkwdask.jobs.pyramid import PyramidJob
from wkwdask.jobs.staged import StagedMags, check_existing, find_interrupted, settings_of
from wkwdask.jobs.wkw_write import check_level, staged_target
from wkwdask.kernels.window import METHODS
from wkwdask.plans.mag_ladder import default_coarsest, mag_ladder
from wkwdask.plans.pyramid import Pass, check_steps, plan_passes
from wkwdask.storage.dataset import choose_layer, locate
from wkwdask.storage.layer_edit import LayerEdit
from wkwdask.storage.local import is_remote
from wkwdask.storage.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.storage.dataset import Layer
    from wkwdask.storage.wkw import WkwVolume

EXISTING = ("error", "resume", "overwrite")
_IGNORE_ZERO_METHODS = ("mode", "mean", "median")
_METHOD_OF_CATEGORY = {"color": "median", "segmentation": "mode"}


@dataclass(frozen=True, slots=True)
class PyramidOptions:
    """What a user may choose for a pyramid; None is the default that the fields of ``build_pyramid`` describe."""

    finest: Mag | None = None
    """The mag to start from."""
    method: str = "default"
    """How a window becomes a voxel."""
    ignore_zero: bool = False
    """Whether zeros do not count in a window."""
    mags: tuple[Mag, ...] | None = None
    """The mags to make."""
    coarsest: Mag | None = None
    """Where the ladder ends."""
    sampling: str | None = None
    """Rule of the ladder."""
    align_with: str | bool = True
    """Whose mags the ladder follows: those of one layer, of all others, of none."""
    compression: str | None = None
    """How blocks are encoded."""
    level: int = 5
    """LZ4HC level."""
    block_len: int | None = None
    """Edge of a block [voxels]."""
    file_len: int | None = None
    """Edge of a file [blocks]."""


@dataclass(frozen=True, slots=True)
class StagedPyramid:
    """A pyramid that can be built."""

    source: WkwVolume
    """The finest mag."""
    method: str
    """How a window becomes a voxel."""
    ignore_zero: bool
    """Whether zeros do not count in a window."""
    header: WkwHeader
    """How the new mags are stored."""
    level: int
    """LZ4HC level."""
    passes: tuple[Pass, ...]
    """How the mags are made."""
    staged: StagedMags
    """What is written; no targets where the finest mag is the coarsest already."""

    @property
    def stored_as(self) -> str:
        """How the new mags are stored, for people."""
        header = self.header
        compression = header.block_type.label + (f" level {self.level}" if header.block_type is BlockType.LZ4HC else "")
        return f"{compression}, blocks of {header.block_len}^3 and files of {header.file_len_vx}^3 voxels"

    def job(self) -> PyramidJob:
        """Make the job."""
        return PyramidJob(self.source, self.staged.targets, self.passes, self.method, ignore_zero=self.ignore_zero)


def stage_pyramid(url: str | os.PathLike[str], layer_name: str | None, options: PyramidOptions, existing: str, workers: int) -> StagedPyramid:
    """Check and lay out the building of a pyramid, or find the interrupted one that is to go on.

    Parameters
    ----------
    url : str or path
        A dataset or a layer; a mag's folder makes that mag the finest.
    layer_name : str, optional
        The layer.
    options : PyramidOptions
        What to build.
    existing : str
        ``"error"``, ``"resume"`` or ``"overwrite"``.
    workers : int
        How many tasks run at once.

    Returns
    -------
    StagedPyramid

    Raises
    ------
    MissingError
        There is no such layer, or it has no files.
    ResumeError
        A pyramid with other settings was interrupted.
    UnsupportedError
        A mag's path leaves the dataset.
    ValueError
        An option makes no sense.
    """
    check_existing(existing, EXISTING)
    check_level(options.level)
    layer, source = open_source(url, layer_name, options.finest)
    method = choose_method(layer, options)
    mags = choose_mags(layer, source, options)
    check_steps(source.box.mag, mags)
    folders = tuple(mag_folder(layer, mag) for mag in mags)
    _check_apart(layer, source, mags, folders)
    header = _header(source, options)
    settings = settings_of(
        "build_pyramid", source=source.box.mag, box=box_setting(source.box), mags=",".join(mag.name for mag in mags),
        method=method, ignore_zero=options.ignore_zero, block_len=header.block_len, file_len=header.file_len,
        compression=header.block_type.label, level=options.level, input=source_token(source),
    )  # fmt: skip
    interrupted = find_interrupted(layer.folder, folders, settings, existing)
    owner = Owner.this_process(f"build_pyramid of {layer.folder}", interrupted.job if interrupted is not None else None)
    targets = tuple(staged_target(owner, layer.folder, header, options.level, source.box.in_mag(mag)) for mag in mags)
    regions = None if interrupted is None else [_vec3(shape) for shape in interrupted.plan["regions"]]
    edge = header.file_len_vx
    passes = tuple(plan_passes(source.box, mags, (header.block_len,) * 3, (edge,) * 3, header.voxel_nbytes, workers, regions))
    edit = _edit(layer, mags, folders, header)
    plan = {"regions": [one.levels[0].region_shape for one in passes]}
    nbytes_in = source.box.volume * header.voxel_nbytes
    staged = StagedMags(owner, layer.folder, targets, folders, nbytes_in, edit, settings, existing, plan)
    return StagedPyramid(source, method, options.ignore_zero, header, options.level, passes, staged)


def open_source(url: str | os.PathLike[str], layer_name: str | None, finest: Mag | None) -> tuple[Layer, WkwVolume]:
    """Open the finest mag of a pyramid.

    Raises
    ------
    MissingError
        There is no such layer or mag, or it has no files.
    ValueError
        A mag's folder was named together with another mag.
    """
    located = locate(url)
    if finest is not None and located.mag not in (None, finest):
        raise ValueError(f"{os.fspath(url)}: is mag {located.mag}, but finest= says {finest}")
    layer = choose_layer(located, layer_name)
    source = layer.volume(finest or located.mag or layer.finest_mag())
    if not source.has_shards():
        raise MissingError(f"{source.folder}: the mag has no data files")
    return layer, source


def box_setting(box: BoundingBox) -> str:
    """Write down a box [voxels of its mag]."""
    return ",".join(map(str, (*box.topleft, *box.size)))


def source_token(source: WkwVolume) -> str:
    """Name the source so that another mag in its place has another name."""
    return hashlib.blake2b(repr(source.token).encode(), digest_size=8).hexdigest()


def choose_mags(layer: Layer, source: WkwVolume, options: PyramidOptions) -> list[Mag]:
    """Choose the mags of a pyramid.

    Raises
    ------
    ValueError
        Options contradict each other, or the mags are no ladder.
    MissingError
        There is no layer to align with.
    """
    finest = source.box.mag
    if options.mags is not None:
        if options.coarsest is not None or options.sampling is not None or options.align_with is not True:
            raise ValueError("mags= lists the mags; coarsest=, sampling= and align_with= choose them: give one or the other")
        mags = sorted(set(options.mags), key=lambda mag: (mag.x * mag.y * mag.z, mag.factors))
        if finest in mags:
            raise ValueError(f"mags= lists mag {finest}, which is the finest: it is what the others are made from")
        return mags
    box = layer.record.bounding_box if layer.record is not None else source.box.in_mag(Mag(1, 1, 1))
    voxel_size = layer.datasource.voxel_size_nm if layer.datasource is not None else None
    sampling = options.sampling or ("constant_z" if source.box.size[2] == 1 else "anisotropic")  # a single section stays one
    coarsest = options.coarsest if options.coarsest is not None else default_coarsest(box)
    return mag_ladder(finest, coarsest, voxel_size, sampling, _aligned_mags(layer, options.align_with))


def _aligned_mags(layer: Layer, align_with: str | bool) -> list[Mag]:
    """List the mags of the layers that a ladder follows."""
    if align_with is False:
        return []
    layers = [] if layer.datasource is None else [other for other in layer.datasource.layers if other.name != layer.name]
    if align_with is not True:
        layers = [other for other in layers if other.name == align_with]
        if not layers:
            raise MissingError(f"{layer.dataset_folder or layer.folder}: no other layer {align_with!r} to align with")
    return [entry.mag for other in layers for entry in other.mags]


def mag_folder(layer: Layer, mag: Mag) -> str:
    """Say where a mag goes or is: where the JSON has it, else in the layer's folder."""
    folder = layer.mags.get(mag, f"{layer.folder}/{mag.name}")
    check_inside_dataset(layer, folder)
    return folder


def choose_method(layer: Layer, options: PyramidOptions) -> str:
    """Choose how a window becomes a voxel.

    Raises
    ------
    ValueError
        The method is unknown, does not go with ``ignore_zero``, or nothing says what kind of layer this is.
    """
    method = options.method
    if method == "default":
        if layer.record is None:
            raise ValueError(
                f"{layer.folder}: no datasource-properties.json says what kind of layer this is; give method= (median or mean for images, mode for labels)"
            )
        method = _METHOD_OF_CATEGORY[layer.record.category]
    if method not in METHODS:
        raise ValueError(f'method must be "default" or one of {", ".join(METHODS)}, got {method!r}')
    if options.ignore_zero and method not in _IGNORE_ZERO_METHODS:
        raise ValueError(f"ignore_zero goes with {', '.join(_IGNORE_ZERO_METHODS)}, not with {method}")
    return method


def _header(source: WkwVolume, options: PyramidOptions) -> WkwHeader:
    """Choose how the new mags are stored: as the source, but raw becomes LZ4HC."""
    before = source.header
    block_type = before.block_type if before.is_compressed else BlockType.LZ4HC
    if options.compression is not None:
        block_type = BlockType.parse(options.compression)
    if options.block_len is None and options.file_len is None:
        return before.with_block_type(block_type)
    return make_header(
        before.dtype, before.num_channels, block_len=options.block_len or before.block_len, file_len=options.file_len or before.file_len, block_type=block_type
    )


def _edit(layer: Layer, mags: Sequence[Mag], folders: Sequence[str], header: WkwHeader) -> LayerEdit | None:
    dataset = layer.dataset_folder
    if dataset is None or layer.record is None:
        return None
    return LayerEdit(
        dataset, layer.name, tuple((mag, f"./{os.path.relpath(path, dataset)}", header.file_len_vx) for mag, path in zip(mags, folders, strict=True))
    )


def _check_apart(layer: Layer, source: WkwVolume, mags: Sequence[Mag], folders: Sequence[str]) -> None:
    """Refuse a JSON by which a new mag would take the place of other data."""
    known = {source.folder: source.box.mag} | {folder: mag for mag, folder in layer.mags.items() if mag not in mags}
    others = [os.path.realpath(folder) for folder in known if not is_remote(folder)]
    for number, folder in enumerate(folders):
        real = os.path.realpath(folder)
        for other in others + [os.path.realpath(before) for before in folders[:number]]:
            if os.path.commonpath([real, other]) in (real, other):
                raise ValueError(f"{folder}: mag {mags[number]} would take the place of {other}; the paths in the JSON overlap")


def _vec3(values: Sequence[int]) -> Vec3:
    return values[0], values[1], values[2]
