"""The verbs that people type."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wkwdask.errors import BoundsError, ExistsError, IncompleteWriteError, LockedError
from wkwdask.formats.wkw.block import DEFAULT_LEVEL
from wkwdask.formats.wkw.header import BlockType, make_header
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cells
from wkwdask.geometry.mag import Mag, vec3
from wkwdask.jobs.new_mags import Place, check_inside_dataset, edit_for, place_of, settings_of, stage
from wkwdask.jobs.report import Report, mag_report
from wkwdask.plans.mag_ladder import default_coarsest, mag_ladder
from wkwdask.plans.pyramid import check_steps
from wkwdask.storage.dataset import Layer, check_inside, choose_layer, locate, open_volume, recent_volume
from wkwdask.storage.job_folder import JobFolder, LayerEdit, NewMag, Owner, is_taken, lock_holder
from wkwdask.storage.summary import DatasetSummary, summarize

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import dask.array as da
    import numpy.typing as npt
    from dask.delayed import Delayed

    from wkwdask.storage.receipts import Receipt
    from wkwdask.storage.wkw import WkwVolume
    from wkwdask.storage.wkw_target import WkwTarget

Url = "str | os.PathLike[str]"
MagLike = "Mag | str | int | Sequence[int]"
Existing = Literal["error", "overwrite"]
_EXISTING = ("error", "overwrite")
_METHOD_OF_CATEGORY = {"color": "median", "segmentation": "mode"}


def open(  # noqa: A001
    url: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: Mag | str | int | Sequence[int] | None = None,
    chunks: str | int | Sequence[int] = "auto",
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    origin: Literal["box", "absolute"] = "box",
    axes: str | None = None,
    channel: int | None = None,
) -> da.Array:
    """Open one mag of a layer as a dask array.

    Only the blocks that a selection touches are decoded. Chunk borders lie on block and file borders.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    layer : str, optional
        The layer; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, such as ``"2-2-1"``; by default that of the path, else the finest that has files.
    chunks : str, int or sequence of 3 int
        ``"auto"`` (within dask's ``array.chunk-size``), ``"file"``, ``"block"``, a size such as ``"64MiB"``, or voxels along x, y, z.
    bounding_box : BoundingBox, str or sequence, optional
        Part of the layer to open: x, y, z, width, height, depth [voxels of mag 1], grown outward to voxels of the mag.
    origin : {"box", "absolute"}
        Whether element 0 is the corner of the box, or the index is the absolute voxel of the mag (zeros before the box).
    axes : str, optional
        Order of the axes, ``"cxyz"`` by default; ``"czyx"`` is what skimage, napari and OME expect. ``"xyz"`` or ``"zyx"`` with one channel.
    channel : int, optional
        Open this channel alone, without the axis c.

    Returns
    -------
    dask.array.Array, shape (c, x, y, z) or as ``axes`` say

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    BoundsError
        The bounding box reaches outside the layer.
    FormatError
        A record or header is broken; broken data files are errors when they are read.
    ValueError
        Several layers could be meant, or an option makes no sense.
    """
    from wkwdask.graphs.read import open_array

    volume = open_volume(url, layer, None if mag is None else Mag.parse(mag))
    box = volume.box
    if bounding_box is not None:
        box = BoundingBox.parse(bounding_box).in_mag(volume.box.mag)
        check_inside(volume.name, volume.box, box)
    if origin not in ("box", "absolute"):
        raise ValueError(f'origin must be "box" or "absolute", got {origin!r}')
    if origin == "absolute" and min(box.topleft) < 0:
        raise BoundsError(f'{volume.name}: the box {box} starts below 0; origin="absolute" cannot index it')
    start = box.topleft if origin == "box" else (0, 0, 0)
    return open_array(volume, chunks=chunks, box=box, start=start, axes=axes, channel=channel)


def read(
    url: str | os.PathLike[str],
    box: BoundingBox | Sequence[Sequence[int]] | None = None,
    *,
    layer: str | None = None,
    mag: Mag | str | int | Sequence[int] | None = None,
) -> npt.NDArray[Any]:
    """Read voxels into a numpy array, without dask; safe in threads and forks.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    box : BoundingBox or pair of corners, optional
        What to read: the lowest corner and the one beyond the highest, absolute voxels of the mag along x, y, z. By default the whole
        box of the layer.
    layer : str, optional
        The layer; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default that of the path, else the finest that has files.

    Returns
    -------
    ndarray, shape (c, x, y, z), Fortran order

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    BoundsError
        The box reaches outside the layer.
    FormatError
        A file is broken; the message names file, block and byte offset.
    """
    parsed_mag = None if mag is None else Mag.parse(mag)
    volume = recent_volume(url, layer, parsed_mag)
    if box is None:
        volume = recent_volume(url, layer, parsed_mag, anew=True)
        asked = volume.box
    else:
        asked = _voxel_box(box, volume.box.mag)
        if not volume.box.contains(asked):
            volume = recent_volume(url, layer, parsed_mag, anew=True)
            check_inside(volume.name, volume.box, asked)
    out = np.empty((volume.num_channels, *asked.size), volume.dtype, order="F")
    volume.read_into(out, asked.topleft)
    return out


def sample(
    url: str | os.PathLike[str],
    points: npt.ArrayLike,
    *,
    layer: str | None = None,
    mag: Mag | str | int | Sequence[int] | None = None,
) -> npt.NDArray[Any]:
    """Read the values at many points, decoding each block once.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    points : array_like of int, shape (n, 3)
        Absolute voxels of the mag along x, y, z.
    layer : str, optional
        The layer; may be omitted where there is one.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag; by default that of the path, else the finest that has files.

    Returns
    -------
    ndarray, shape (n,) for one channel, else (n, c)

    Raises
    ------
    BoundsError
        A point lies outside the layer.
    MissingError
        There is no such dataset, layer or mag.
    FormatError
        A file is broken.
    TypeError
        The points are no whole numbers.
    """
    array = np.asarray(points)
    if array.size == 0:
        array = array.reshape(0, 3).astype(np.int64)
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iu":
        raise TypeError(f"points are whole numbers of shape (n, 3), got {array.dtype} of shape {array.shape}")
    volume = recent_volume(url, layer, None if mag is None else Mag.parse(mag), anew=True)
    values = volume.sample(array.astype(np.int64))
    return values[:, 0] if volume.num_channels == 1 else values


def to_wkw(
    array: da.Array | npt.NDArray[Any],
    url: str | os.PathLike[str],
    *,
    offset: Sequence[int] = (0, 0, 0),
    block_len: int = 32,
    file_len: int = 32,
    compression: str = "lz4hc",
    level: int = DEFAULT_LEVEL,
    existing: Existing = "error",
    category: Literal["color", "segmentation"] | None = None,
    compute: bool = True,
) -> Report | Delayed:
    """Write an array as one mag, in parallel and whole: it appears when it is complete, or not at all.

    Parameters
    ----------
    array : dask.array.Array or ndarray, shape (x, y, z) or (c, x, y, z)
        The voxels, in any chunks, of a type that WKW has.
    url : str or path
        The mag's folder, such as ``dataset/layer/1``. A ``datasource-properties.json`` in the dataset is brought up to date; without one the
        mag keeps no box and opens as whole files.
    offset : sequence of 3 int
        Absolute voxel of the mag that element 0 goes to.
    block_len : int
        Edge of a block [voxels], a power of two up to 128.
    file_len : int
        Edge of a file [blocks], a power of two up to 128.
    compression : {"lz4hc", "lz4", "raw"}
        How blocks are encoded.
    level : int
        LZ4HC level, 1..12.
    existing : {"error", "overwrite"}
        What to do where the mag is there already; ``"overwrite"`` replaces it whole.
    category : {"color", "segmentation"}, optional
        What a layer is that the JSON does not know yet; by default integers of 32 bits and more are a segmentation.
    compute : bool
        False checks everything now and gives a dask ``Delayed`` whose last task lets the mag appear.

    Returns
    -------
    Report or Delayed

    Raises
    ------
    ExistsError
        The mag is there and ``existing="error"``.
    LockedError
        Another job writes it.
    TypeError
        WKW has no voxel type for the array.
    ValueError
        Shape, offset or an option makes no sense.
    """
    if array.ndim not in (3, 4):
        raise ValueError(f"the array must have the shape (x, y, z) or (c, x, y, z), got {array.shape}")
    if array.ndim == 3:
        array = array[np.newaxis]
    if any(n != n for n in array.shape):
        raise ValueError("the array's shape is not known; call its compute_chunk_sizes() first")
    topleft = vec3(offset, "offset")
    if min(topleft) < 0:
        raise ValueError(f"offset must not be negative, got {topleft}")
    header = make_header(array.dtype, array.shape[0], block_len=block_len, file_len=file_len, block_type=BlockType.parse(compression))
    _check_options(existing, level, category)
    place = place_of(url)
    box = BoundingBox(topleft, array.shape[1:], place.mag)
    edit = edit_for(place, header, box, category)
    settings = settings_of(
        "to_wkw", folder=place.folder, box=box, dtype=header.dtype, channels=header.num_channels, block_len=block_len, file_len=file_len,
        compression=compression, level=level, existing=existing,
    )  # fmt: skip
    job = _WriteMag(place, header_box=box, edit=edit, settings=settings, existing=existing)
    job.stage(header, level)
    if isinstance(array, np.ndarray):
        return job.write_numpy(array) if compute else job.delayed(_as_dask(array, job.target))
    return job.write_dask(array) if compute else job.delayed(array)


def write(url: str | os.PathLike[str], offset: Sequence[int], array: npt.NDArray[Any], **options: Any) -> Report:
    """Write a numpy array as one mag.

    Parameters
    ----------
    url : str or path
        The mag's folder.
    offset : sequence of 3 int
        Absolute voxel of the mag that element 0 goes to.
    array : ndarray, shape (x, y, z) or (c, x, y, z)
        The voxels.
    **options
        As for :func:`to_wkw`, but ``compute``.

    Returns
    -------
    Report

    Raises
    ------
    ExistsError, LockedError, TypeError, ValueError
        As for :func:`to_wkw`.
    """
    if "compute" in options:
        raise TypeError("write() always computes; to_wkw() takes compute=False")
    report = to_wkw(np.asarray(array), url, offset=offset, **options)
    assert isinstance(report, Report)
    return report


def build_pyramid(
    url: str | os.PathLike[str],
    layer: str | None = None,
    *,
    method: str = "default",
    coarsest: Mag | str | int | Sequence[int] | None = None,
    compression: str | None = None,
    level: int = DEFAULT_LEVEL,
    existing: Existing = "error",
) -> Report:
    """Make all coarser mags of a layer from its finest mag, in one pass over it.

    Runs on threads, or on the active dask Client; the result is the same. The mags appear whole, then the JSON lists them.

    Parameters
    ----------
    url : str or path
        A dataset or a layer; also a layer's folder without any JSON, for which ``method`` must be given.
    layer : str, optional
        The layer; may be omitted where there is one.
    method : {"default", "median", "mode", "mean", "min", "max", "nearest"}
        How a window becomes a voxel; by default median for color and mode for segmentation.
    coarsest : Mag, str, int or sequence of 3 int, optional
        Where the pyramid ends; by default WEBKNOSSOS's choice.
    compression : {"lz4hc", "lz4", "raw"}, optional
        How blocks are encoded; by default as in the finest mag, LZ4HC if that is raw.
    level : int
        LZ4HC level, 1..12.
    existing : {"error", "overwrite"}
        What to do where one of the mags is there already; ``"overwrite"`` replaces them whole.

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        A mag is there and ``existing="error"``.
    LockedError
        Another job writes one of the mags.
    MissingError
        There is no such layer, or it has no files.
    UnsupportedError
        A step is not 1 or 2 on some axis, or a mag's path leaves the dataset.
    FormatError
        A source file is broken.
    ValueError
        An option makes no sense.
    """
    _check_options(existing, level, None)
    located = locate(url)
    chosen = choose_layer(located, layer)
    source = chosen.volume(located.mag if located.mag is not None else chosen.finest_mag())
    method = _method(chosen, method)
    block_type = _block_type(source, compression)
    mags = _mags(chosen, source, coarsest)
    check_steps(source.box.mag, mags)
    folders = [_mag_folder(chosen, mag) for mag in mags]
    if not mags:
        return Report((), 0, 0.0, f"mag {source.box.mag} is the coarsest already: nothing to do")
    settings = settings_of(
        "build_pyramid", folder=chosen.folder, source=source.box.mag, box=source.box, mags=",".join(mag.name for mag in mags), method=method,
        compression=block_type.label, level=level, existing=existing,
    )  # fmt: skip
    header = source.header.with_block_type(block_type)
    layer_box = chosen.record.bounding_box if chosen.record is not None else source.box
    owner = Owner.this_process(f"build_pyramid of {chosen.folder}")
    folder, targets, new_mags = stage(
        owner, chosen.folder, [(path, header, layer_box.in_mag(mag)) for path, mag in zip(folders, mags, strict=True)], level
    )
    finished = folder.start([mag.folder for mag in new_mags], existing, settings)
    if finished is not None:
        return Report.from_json(finished["report"], _FINISHED_NOTE)
    return _run_pyramid(folder, targets, new_mags, source, layer_box, method, _pyramid_edit(chosen, folders, targets), settings)


def info(url: str | os.PathLike[str]) -> DatasetSummary:
    """Summarise a dataset, layer or mag: what ``wkwdask info`` prints.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.

    Returns
    -------
    DatasetSummary

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    FormatError
        The JSON is broken.
    """
    return summarize(url)


_FINISHED_NOTE = "an earlier job with the same settings was interrupted while it published its result; that was finished now"


class _WriteMag:
    """One array on its way into one mag."""

    def __init__(self, place: Place, *, header_box: BoundingBox, edit: LayerEdit | None, settings: dict[str, Any], existing: str) -> None:
        self._place = place
        self._box = header_box
        self._edit = edit
        self._settings = settings
        self._existing = existing

    def stage(self, header: Any, level: int) -> None:
        """Lay out the job's folder; makes nothing yet."""
        place = self._place
        owner = Owner.this_process(f"to_wkw into {place.folder}")
        self._folder, (self.target,), self._new_mags = stage(owner, place.layer.folder, [(place.folder, header, self._box)], level)

    def _start(self) -> dict[str, Any] | None:
        return self._folder.start([self._place.folder], self._existing, self._settings)

    def write_numpy(self, array: npt.NDArray[Any]) -> Report:
        """Write an array in memory."""
        from wkwdask.graphs.runners import run_job
        from wkwdask.jobs.write import WriteJob

        started = time.monotonic()
        finished = self._start()
        if finished is not None:
            return Report.from_json(finished["report"], _FINISHED_NOTE)
        try:
            job = WriteJob(self.target, array.astype(self.target.dtype, copy=False))
            run_job(job, f"writing {self._place.folder}", here=True)
            return self._publish(job.receipts, started)
        except BaseException:
            self._folder.discard()
            raise

    def write_dask(self, array: da.Array) -> Report:
        """Write a dask array."""
        from wkwdask.graphs.write import compute_receipts, shard_receipts

        started = time.monotonic()
        finished = self._start()
        if finished is not None:
            return Report.from_json(finished["report"], _FINISHED_NOTE)
        try:
            self.target.prepare()
            receipts = compute_receipts(shard_receipts(array, self.target), f"writing {self._place.folder}") if array.size else []
            return self._publish(receipts, started)
        except BaseException:
            self._folder.discard()
            raise

    def delayed(self, array: da.Array) -> Delayed:
        """Check now, and build a graph that does the rest."""
        import dask

        from wkwdask.graphs.write import finished, shard_receipts

        holder = lock_holder(self._place.folder)
        if holder is not None:
            raise LockedError(f"{self._place.folder}: another job writes it: {holder}")
        if self._existing == "error" and is_taken(self._place.folder):
            raise ExistsError(f'{self._place.folder}: is there already; existing="overwrite" replaces it whole')
        if not array.size:
            return dask.delayed(self._publish_later, pure=False)([])
        delayed: Delayed = finished(shard_receipts(array, self.target, self._prepare_later), self._publish_later)
        return delayed

    def _prepare_later(self) -> None:
        self._start()
        self.target.prepare()

    def _publish_later(self, receipts: list[Receipt]) -> Report:
        if not receipts:
            self._prepare_later()
        self._folder.resume_ownership([self._place.folder])
        return self._publish(receipts, time.monotonic())

    def _publish(self, receipts: list[Receipt], started: float) -> Report:
        """Make sure that all is there, and let it appear."""
        expected = set(cells(self._box, self.target.shard_shape))
        found = [receipt.shard for receipt in receipts]
        if len(found) != len(expected) or set(found) != expected:
            raise IncompleteWriteError(f"{self._place.folder}: receipts for {len(found)} files, expected {len(expected)}")
        nbytes_in = self._box.volume * self.target.header.voxel_nbytes
        report = Report((mag_report(self._place.folder, receipts),), nbytes_in, time.monotonic() - started)
        self._folder.publish(self._new_mags, self._edit, {"settings": self._settings, "report": report.to_json()})
        return report


def _run_pyramid(
    folder: JobFolder,
    targets: list[WkwTarget],
    new_mags: list[NewMag],
    source: WkwVolume,
    layer_box: BoundingBox,
    method: str,
    edit: LayerEdit | None,
    settings: dict[str, Any],
) -> Report:
    """Build all mags in the job's folder and let them appear."""
    from wkwdask.graphs.runners import num_workers, run_job
    from wkwdask.jobs.pyramid import PyramidJob

    started = time.monotonic()
    try:
        job = PyramidJob(source, targets, layer_box, method, num_workers())
        run_job(job, f"pyramid of {folder.parent}")
        job.check_complete()
        mags = tuple(mag_report(mag.folder, receipts) for mag, receipts in zip(new_mags, job.receipts, strict=True))
        report = Report(mags, source.box.volume * source.header.voxel_nbytes, time.monotonic() - started)
        folder.publish(new_mags, edit, {"settings": settings, "report": report.to_json()})
    except BaseException:
        folder.discard()
        raise
    return report


def _pyramid_edit(layer: Layer, folders: list[str], targets: list[WkwTarget]) -> LayerEdit | None:
    import os

    if layer.dataset_folder is None or layer.record is None:
        return None
    dataset = layer.dataset_folder
    mags = tuple((target.box.mag, f"./{os.path.relpath(path, dataset)}", target.header.file_len_vx) for path, target in zip(folders, targets, strict=True))
    return LayerEdit(dataset, layer.name, mags)


def _mags(layer: Layer, source: WkwVolume, coarsest: Mag | str | int | Sequence[int] | None) -> list[Mag]:
    """Choose the mags of a pyramid."""
    finest = source.box.mag
    box = layer.record.bounding_box if layer.record is not None else source.box.in_mag(Mag(1, 1, 1))
    end = default_coarsest(box) if coarsest is None else Mag.parse(coarsest)
    voxel_size = layer.datasource.voxel_size_nm if layer.datasource is not None else None
    others = [] if layer.datasource is None else [entry.mag for other in layer.datasource.layers if other.name != layer.name for entry in other.mags]
    sampling = "constant_z" if source.box.size[2] == 1 else "anisotropic"  # a single section stays one
    return mag_ladder(finest, end, voxel_size, sampling, others)


def _mag_folder(layer: Layer, mag: Mag) -> str:
    """Say where a coarser mag goes: where the JSON has it, else into the layer's folder."""
    folder = layer.mags.get(mag, f"{layer.folder}/{mag.name}")
    check_inside_dataset(layer, folder)
    return folder


def _method(layer: Layer, method: str) -> str:
    from wkwdask.kernels.window import METHODS

    if method == "default":
        if layer.record is None:
            raise ValueError(f"{layer.folder}: no datasource-properties.json says what kind of layer this is; give method= (median or mean for images, mode for labels)")
        return _METHOD_OF_CATEGORY[layer.record.category]
    if method not in METHODS:
        raise ValueError(f'method must be "default" or one of {", ".join(METHODS)}, got {method!r}')
    return method


def _block_type(source: WkwVolume, compression: str | None) -> BlockType:
    if compression is not None:
        return BlockType.parse(compression)
    return source.header.block_type if source.header.is_compressed else BlockType.LZ4HC


def _check_options(existing: str, level: int, category: str | None) -> None:
    if existing not in _EXISTING:
        raise ValueError(f'existing must be "error" or "overwrite", got {existing!r}')
    if not 1 <= level <= 12:
        raise ValueError(f"level must be in 1..12, got {level}")
    if category not in (None, "color", "segmentation"):
        raise ValueError(f'category must be "color" or "segmentation", got {category!r}')


def _voxel_box(box: BoundingBox | Sequence[Sequence[int]], mag: Mag) -> BoundingBox:
    """Turn a pair of corners into a box of a mag."""
    if isinstance(box, BoundingBox):
        return box.in_mag(mag)
    if len(box) != 2:
        raise ValueError(f"box is a pair of corners ((x, y, z), (x, y, z)), got {box!r}")
    return BoundingBox.from_corners(box[0], box[1], mag)


def _as_dask(array: npt.NDArray[Any], target: WkwTarget) -> da.Array:
    import dask.array

    from wkwdask.jobs.write import PART_NBYTES

    return dask.array.from_array(array, chunks=(array.shape[0], *target.part_shape(PART_NBYTES)))
