"""Build the coarser mags of a layer, or finer ones by upsampling."""

from __future__ import annotations

import os
import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Unpack

from wkwdask.api.options import (
    MagLike,
    StorageKeywords,
    parse_mags,
    parse_voxel_size,
    refuse_options,
    storage_options,
)
from wkwdask.formats.opening import options_class
from wkwdask.formats.precomputed.format import FORMAT as PRECOMPUTED
from wkwdask.formats.registry import storage_records
from wkwdask.formats.replaceable import replaces
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.image import mag_or_key
from wkwdask.model.options import make_options
from wkwdask.runs.calls import same_call
from wkwdask.runs.drive import Plan
from wkwdask.runs.report import Report, merge_reports
from wkwdask.runs.staged import join_interrupted_call
from wkwdask.store.looks import looking
from wkwdask.verbs.estimate import PyramidPlan, estimate_pyramid
from wkwdask.verbs.pyramid import Pyramid, PyramidOptions, lay_out_pyramid
from wkwdask.verbs.update.estimate import UpdatePlan, estimate_update
from wkwdask.verbs.update.plan import lay_out_update
from wkwdask.verbs.upsample import UpsampleOptions, lay_out_upsample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wkwdask.verbs.update.in_place import Update
    from wkwdask.verbs.update.new_levels import SwitchedUpdate

_PYRAMID_OPTIONS = {each.name for each in fields(PyramidOptions)} - {"stored"}


@storage_options(*storage_records())
@looking()
def build_pyramid(
    url: str | os.PathLike[str],
    layer: str | Sequence[str] | None = None,
    *,
    finest: MagLike | None = None,
    mags: Sequence[MagLike] | None = None,
    coarsest: MagLike | None = None,
    sampling: Literal["anisotropic", "isotropic", "constant_z"] | None = None,
    align_with: str | bool = True,
    method: str = "default",
    ignore_zero: bool = False,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    update: bool | Literal["content"] = False,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Build all coarser mags of a layer from its finest mag, in one pass over it.

    Tasks run on threads, or on the active dask Client, with the same result. Complete mags are
    published, then the JSON lists them. The same call resumes an interrupted one and keeps its
    finished work. :func:`plan_pyramid` estimates the work in advance.

    Parameters
    ----------
    url : str or path
        A dataset, a layer, or an image in another format such as ``precomputed://PATH``. The folder
        of a mag selects that mag as the finest. A layer's folder without JSON needs ``method``.
        Scales of precomputed volumes are named by mag or key.
    layer : str or sequence of str, optional
        One layer, or several that are processed one after the other; may be omitted if there is
        only one.
    finest : Mag, str, int or sequence of 3 int, optional
        The mag to start from; by default the finest mag that was written.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags to build. Each is built from the one before it; factors above 2 are allowed, such
        as from 1 to 4-4-1.
    coarsest : Mag, str, int or sequence of 3 int, optional
        The last mag of the ladder; by default the one that WEBKNOSSOS chooses.
    sampling : {"anisotropic", "isotropic", "constant_z"}, optional
        Rule of the ladder: approach cubic voxels (the default), double all axes, or double all axes
        except z (the default for a single section).
    align_with : str or bool
        Align the ladder with the mags of this layer, of all other layers (True), or of none
        (False).
    method : {"default", "median", "mode", "mean", "min", "max", "nearest"}
        Reduction of a window to a voxel; by default mode for segmentation, median for color, and
        mean for an image of a precomputed volume. Bool has the mode alone.
    ignore_zero : bool
        Ignore zeros in mode, mean and median: a voxel becomes zero only if its whole window is
        zero.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if one of the mags exists. An interrupted job is continued. ``"resume"`` does nothing
        if the job has finished, ``"overwrite"`` replaces the mags, and ``"restart"`` does so and
        starts over. A finished pyramid with the same settings is no error: the same call does
        nothing, so it can be repeated after an interruption at any point.
    update : bool or "content"
        Rebuild, in place, only the files whose source files changed (by size and time) and files
        that changed themselves, in the mags that were built from the finest mag. ``"content"``
        ignores times: it computes all files again and replaces those that differ. In a bucket,
        mags with changes are replaced whole, and their other files are copied by the server.
    bounding_box : BoundingBox, str or sequence, optional
        Rebuild, in place, only the files that show this part of the layer: x, y, z, width, height,
        depth [voxels of mag 1].
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        Storage options of the new mags or scales, by default those of the finest. Raw WKW blocks
        become LZ4HC. Files are sized to fit the box of each mag, at most as long as those of the
        finest mag, or 8 blocks if that has one file per block, as in annotations exported by
        WEBKNOSSOS.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        A mag that was built with other settings exists, and ``existing="error"``.
    LockedError
        Another job is writing one of the mags.
    ResumeError
        The existing mags or the interrupted job were made with other settings or from other data.
    MissingError
        The layer or a mag to update does not exist, or has no files.
    UnsupportedError
        The path of a mag leads out of the dataset.
    FormatError
        A source file is broken.
    ValueError
        An option is invalid.

    Notes
    -----
    NaN propagates in mean, median, min and max. The mode ignores NaN, unless the whole window is
    NaN. Half floats are computed as float32 and rounded once.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> dataset = wkwdask.create_dataset(tempfile.mkdtemp() + "/cells", (4, 4, 35))
    >>> _ = wkwdask.write(f"{dataset.path}/raw/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8))
    >>> report = wkwdask.build_pyramid(dataset.path, "raw", coarsest="4-4-1")
    >>> [str(mag) for mag in wkwdask.open_dataset(dataset.path)["raw"].mags]
    ['1', '2-2-1', '4-4-1']
    """
    from wkwdask.graphs.job_array import check_restartable
    from wkwdask.graphs.runners import is_pyramid_planned, num_sharing_workers, run_plan, run_work

    if is_pyramid_planned(os.fspath(url)):
        return Report((), 0, 0.0)
    arguments = {
        "finest": finest,
        "mags": mags,
        "coarsest": coarsest,
        "sampling": sampling,
        "align_with": align_with,
        "method": method,
        "ignore_zero": ignore_zero,
        "allow_external": allow_external,
        **options,
    }
    if PRECOMPUTED.guess_can_open(url):
        refuse_options(f"{os.fspath(url)} is a precomputed volume", {"layer": layer})
    names = [layer] if layer is None or isinstance(layer, str) else list(layer)
    if not names:
        raise ValueError("layer= names no layer")
    pyramid_options = _pyramid_options(url, names, arguments)
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    if not _is_update(update, box):
        pyramids = [
            _with_warnings(
                lay_out_pyramid(url, name, pyramid_options, existing, num_sharing_workers())
            )
            for name in names
        ]
        check_restartable(len(pyramids), overwrites=replaces(existing))
        with same_call():
            if len(pyramids) > 1:
                # a mag of the last layer that is in the way must raise before the first pyramid is
                # built
                join_interrupted_call([pyramid.staged for pyramid in pyramids])
                for pyramid in pyramids:
                    pyramid.accepting_finished().staged.check_free()
            return merge_reports(
                [
                    run_plan(pyramid.accepting_finished(), force_space=force_space)
                    for pyramid in pyramids
                ]
            )
    updates = _lay_out_updates(url, names, pyramid_options, update, box, existing)
    return merge_reports(
        [
            run_plan(work, force_space=force_space) if isinstance(work, Plan) else run_work(work)
            for work in updates
        ]
    )


def plan_pyramid(
    url: str | os.PathLike[str], layer: str | None = None, **options: Any
) -> PyramidPlan | UpdatePlan:
    """Estimate the work of :func:`build_pyramid` for the same arguments, without writing anything.

    ``wkwdask pyramid --dry-run`` prints the same plan.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    layer : str, optional
        The layer; may be omitted if there is only one.
    **options
        As for :func:`build_pyramid`.

    Returns
    -------
    PyramidPlan or UpdatePlan
        Tasks, files, bytes, memory and time of the job; of an update the files to rebuild and to
        copy, and their bytes. ``print()`` shows it as text.

    Raises
    ------
    MissingError, ResumeError, UnsupportedError, ValueError
        As for :func:`build_pyramid`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> dataset = wkwdask.create_dataset(tempfile.mkdtemp() + "/cells", (4, 4, 35))
    >>> _ = wkwdask.write(f"{dataset.path}/raw/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8))
    >>> wkwdask.plan_pyramid(dataset.path, "raw", mags=["2-2-1", "4-4-1"]).files
    2
    """
    from wkwdask.graphs.runners import num_sharing_workers, num_workers

    if layer is not None and not isinstance(layer, str):
        raise TypeError(f"layer must be the name of one layer, got {layer!r}")
    existing = options.pop("existing", "error")
    options.pop("force_space", None)  # for the job alone
    update, box = options.pop("update", False), options.pop("bounding_box", None)
    box = None if box is None else BoundingBox.parse(box)
    pyramid_options = _pyramid_options(url, [layer], options)
    if _is_update(update, box):
        (work,) = _lay_out_updates(url, [layer], pyramid_options, update, box, existing)
        return estimate_update(work, num_workers(), by_content=update == "content", box=box)
    plan = _with_warnings(
        lay_out_pyramid(url, layer, pyramid_options, existing, num_sharing_workers())
    )
    return estimate_pyramid(plan, num_workers())


@storage_options(*storage_records())
@looking()
def upsample(
    url: str | os.PathLike[str],
    layer: str | None = None,
    *,
    source: MagLike | None = None,
    finest: MagLike | None = None,
    mags: Sequence[MagLike] | None = None,
    voxel_size: Sequence[float] | None = None,
    existing: Literal["error", "resume", "overwrite", "restart"] = "error",
    allow_external: bool = False,
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Upsample a layer or an image of any format to finer mags.

    Each voxel becomes a block of equal voxels.

    Tasks run on threads, or on the active dask Client, with the same result. Complete mags are
    published, then the JSON lists them. The same call resumes an interrupted one and keeps its
    finished work.

    Parameters
    ----------
    url : str or path
        A dataset or a layer. The folder of a mag selects that mag as the source.
    layer : str, optional
        The layer; may be omitted if there is only one.
    source : Mag, str, int or sequence of 3 int, optional
        The coarse mag to start from; by default the finest mag that was written.
    finest : Mag, str, int or sequence of 3 int, optional
        The finest mag to build, 1 by default. The mags of WEBKNOSSOS's ladder (or of other layers)
        between it and the source are built too. A mag that has data is kept, unless this function
        built it from the source and ``existing`` is not ``"error"``.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags to build instead of that ladder. Each is built from the source directly, by any
        factor per axis.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 along x, y, z [nm], by default those of the image.
        Precomputed volumes and N5 groups count mags from their finest level: a smaller voxel size
        adds levels in front of it, mag 1 among them, and the mags of the existing levels become
        coarser. In other formats it must be that of the image.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if one of the mags exists. An interrupted job is continued. ``"resume"`` does nothing
        if the job has finished, ``"overwrite"`` replaces the mags, and ``"restart"`` does so and
        starts over.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        Storage options of the new mags, by default those of the source. Raw blocks become LZ4HC.
        Files are sized to fit the box of each mag, at most 32 blocks long, or 8 if the source has
        one file per block.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        A mag exists and ``existing="error"``.
    LockedError
        Another job is writing one of the mags.
    ResumeError
        The existing mags or the interrupted job were made with other settings or from other data.
    MissingError
        The layer does not exist, or the source has no files.
    UnsupportedError
        The path of a mag leads out of the dataset.
    FormatError
        A source file is broken.
    ValueError
        An option is invalid, a mag is not finer than the source, or ``voxel_size`` is not that of
        the image divided by powers of two.

    Notes
    -----
    Voxel (x, y, z) of a new mag is voxel (x // fx, y // fy, z // fz) of the source, counted from
    the dataset's origin. The box of a new mag is the layer's box in that mag; voxels of the source
    beyond it are dropped.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> dataset = wkwdask.create_dataset(tempfile.mkdtemp() + "/cells", (4, 4, 35))
    >>> _ = wkwdask.write(
    ...     f"{dataset.path}/raw/2-2-1",
    ...     (0, 0, 0),
    ...     np.arange(4096, dtype=np.uint16).reshape(16, 16, 16),
    ... )
    >>> _ = wkwdask.upsample(dataset.path, "raw")
    >>> wkwdask.read(dataset.path, ((0, 0, 1), (4, 1, 2)), layer="raw", mag=1).ravel().tolist()
    [1, 1, 257, 257]
    """
    from wkwdask.graphs.runners import num_workers, run_plan

    parsed_mags = {
        name: Mag.parse(mag)
        for name, mag in (("source", source), ("finest", finest))
        if mag is not None
    }
    size = None if voxel_size is None else parse_voxel_size(voxel_size)
    storage = make_options(options_class(url, [layer]), **options)
    upsample_options = UpsampleOptions(
        **parsed_mags,
        mags=parse_mags(mags),
        voxel_size_nm=size,
        stored=storage,
        allow_external=allow_external,
    )
    return run_plan(
        lay_out_upsample(url, layer, upsample_options, existing, num_workers()),
        force_space=force_space,
    )


def _is_update(update: bool | str, box: BoundingBox | None) -> bool:
    """Return whether a call changes existing mags."""
    if update not in (True, False, "content"):
        raise ValueError(f'update must be True, False or "content", got {update!r}')
    return bool(update) or box is not None


def _lay_out_updates(
    url: str | os.PathLike[str],
    layers: Iterable[str | None],
    options: PyramidOptions,
    update: bool | str,
    box: BoundingBox | None,
    existing: str,
) -> Iterator[Update | SwitchedUpdate]:
    """Plan the update of each layer, once it is needed."""
    if existing != "error":
        raise ValueError(
            f"existing={existing!r} is for building a pyramid, update= and bounding_box= change an "
            "existing one; use one or the other"
        )
    if update == "content" and box is not None:
        raise ValueError(
            'update="content" rebuilds everything, bounding_box= a part; use one or the other'
        )
    return (
        lay_out_update(url, name, options, by_content=update == "content", box=box)
        for name in layers
    )


def _pyramid_options(
    url: str | os.PathLike[str], layers: Sequence[str | None], values: dict[str, Any]
) -> PyramidOptions:
    """Return the options of a pyramid from the arguments of a call."""
    pyramid_values = {name: value for name, value in values.items() if name in _PYRAMID_OPTIONS}
    parse = {"finest": mag_or_key, "coarsest": Mag.parse}
    parsed_mags = {
        name: parse[name](pyramid_values[name])
        for name in parse
        if pyramid_values.get(name) is not None
    }
    storage = make_options(
        options_class(url, layers),
        **{name: value for name, value in values.items() if name not in _PYRAMID_OPTIONS},
    )
    return PyramidOptions(
        **{**pyramid_values, **parsed_mags, "mags": parse_mags(pyramid_values.get("mags"))},
        stored=storage,
    )


def _with_warnings(pyramid: Pyramid) -> Pyramid:
    """Issue a warning for each property of a pyramid that viewers would show wrongly."""
    for note in pyramid.notes:
        warnings.warn(note, stacklevel=5)
    return pyramid
