"""Pyramids: all coarser mags of a layer, or finer ones."""

from __future__ import annotations

import os
import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Unpack

from wkwdask.api.options import MagLike, StorageKeywords, parse_mags, refuse_options, storage_options
from wkwdask.errors import ViewerWarning
from wkwdask.formats.opening import options_of
from wkwdask.formats.precomputed.format import FORMAT as PRECOMPUTED
from wkwdask.formats.registry import storage_records
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.model.image import mag_or_key
from wkwdask.model.options import check
from wkwdask.runs.report import Report, merge_reports
from wkwdask.verbs.estimate import PyramidPlan, estimate_pyramid
from wkwdask.verbs.pyramid import Pyramid, PyramidOptions, lay_out_pyramid
from wkwdask.verbs.update import lay_out_update
from wkwdask.verbs.upsample import UpsampleOptions, lay_out_upsample

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_LADDER = {each.name for each in fields(PyramidOptions)} - {"stored"}


@storage_options(*storage_records())
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
    existing: Literal["error", "resume", "overwrite"] = "error",
    update: bool | Literal["content"] = False,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Make all coarser mags of a layer from its finest mag, in one pass over it.

    Runs on threads, or on the active dask Client; the result is the same. The mags appear whole, then the JSON lists them. What an interrupted
    call finished is kept: the same call goes on from there. :func:`plan_pyramid` tells beforehand what would be done.

    Parameters
    ----------
    url : str or path
        A dataset or a layer; also a layer's folder without any JSON, for which ``method`` must be given. A mag's folder makes that mag the finest. Or a
        Neuroglancer precomputed volume (``precomputed://PATH``), whose scales are named by their mags or keys.
    layer : str or sequence of str, optional
        The layer, or several, one after the other; may be omitted if there is only one.
    finest : Mag, str, int or sequence of 3 int, optional
        The mag to start from; by default the finest that has files.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags to make. Each is made from the one before it and may jump, such as from 1 to 4-4-1.
    coarsest : Mag, str, int or sequence of 3 int, optional
        Where the ladder ends; by default WEBKNOSSOS's choice.
    sampling : {"anisotropic", "isotropic", "constant_z"}, optional
        Rule of the ladder: towards cubic voxels (the default), all axes doubled, or all but z (the default for a single section).
    align_with : str or bool
        The ladder follows the mags of this layer, of all other layers (True), or of none (False).
    method : {"default", "median", "mode", "mean", "min", "max", "nearest"}
        How a window becomes a voxel; by default mode for segmentation, median for color, and mean for an image of a precomputed volume.
    ignore_zero : bool
        Zeros do not count, for mode, mean and median: a voxel is zero only where all of its window is.
    existing : {"error", "resume", "overwrite"}
        What to do where one of the mags already exists. ``"resume"`` goes on with an interrupted job (as every value but ``"overwrite"`` does) and does
        nothing where the job was finished; ``"overwrite"`` replaces the mags whole, and starts anew. A finished pyramid with the same settings is no error:
        the same call does nothing, so that it can be repeated whenever it was killed.
    update : bool or "content"
        Make anew only files that lie above files that have changed (by size and time) since, or that have changed themselves, file by file in place,
        in the mags that were built from the finest one. ``"content"`` trusts no times: all files are made anew, and those that differ are replaced.
    bounding_box : BoundingBox, str or sequence, optional
        Make anew, in place, what lies above this part of the layer [voxels of mag 1].
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    **options
        How the new mags or scales are stored; what is not given is as in the finest one. Raw blocks of WKW become LZ4HC, and files suit the box of each mag, at
        most as long as those of the finest mag, or 8 blocks where that has a file for each block, as WEBKNOSSOS exports annotations.
        {options}

    Returns
    -------
    Report

    Raises
    ------
    ExistsError
        A mag is there that was made otherwise, and ``existing="error"``.
    LockedError
        Another job is writing one of the mags.
    ResumeError
        What is there, or was interrupted, was made with other settings or from other data.
    MissingError
        There is no such layer, it has no files, or a mag to update is not there.
    UnsupportedError
        The path of a mag leads out of the dataset.
    FormatError
        A source file is broken.
    ValueError
        An option is invalid.

    Notes
    -----
    NaN propagates in mean, median, min and max, and is no value for mode (a window of nothing but NaN has the mode NaN).
    """
    from wkwdask.graphs.job_array import check_restartable
    from wkwdask.graphs.runners import is_pyramid_planned, num_workers, run_plan, run_work

    if is_pyramid_planned(os.fspath(url)):
        return Report((), 0, 0.0)
    given = {
        "finest": finest, "mags": mags, "coarsest": coarsest, "sampling": sampling, "align_with": align_with, "method": method, "ignore_zero": ignore_zero,
        "allow_external": allow_external, **options,
    }  # fmt: skip
    if PRECOMPUTED.guess(url):
        refuse_options(f"{os.fspath(url)} is a precomputed volume", {"layer": layer})
    wanted = _pyramid_options(url, given)
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    names = [layer] if layer is None or isinstance(layer, str) else list(layer)
    if not names:
        raise ValueError("layer= names no layer")
    if update not in (True, False, "content"):
        raise ValueError(f'update must be True, False or "content", got {update!r}')
    if not update and box is None:
        pyramids = [_warned(lay_out_pyramid(url, name, wanted, existing, num_workers())) for name in names]
        check_restartable(len(pyramids), overwrites=existing == "overwrite")
        if len(pyramids) > 1:  # before the first one is built
            for pyramid in pyramids:
                pyramid.accepting_finished().staged.check_free()
        return merge_reports([run_plan(pyramid.accepting_finished()) for pyramid in pyramids])
    if existing != "error":
        raise ValueError(f"existing={existing!r} is about building; update= and bounding_box= change what is there: give one or the other")
    if update == "content" and box is not None:
        raise ValueError('update="content" makes everything anew, bounding_box= a part: give one or the other')
    return merge_reports([run_work(lay_out_update(url, name, wanted, by_content=update == "content", box=box)) for name in names])


def plan_pyramid(url: str | os.PathLike[str], layer: str | None = None, **options: Any) -> PyramidPlan:
    """Tell what :func:`build_pyramid` would do with the same arguments, without writing anything: what ``wkwdask pyramid --dry-run`` prints.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    layer : str, optional
        The layer; may be omitted if there is only one.
    **options
        As for :func:`build_pyramid`, but ``update`` and ``bounding_box``.

    Returns
    -------
    PyramidPlan
        Tasks, files, bytes, memory and time; its ``str()`` is for people.

    Raises
    ------
    MissingError, ResumeError, UnsupportedError, ValueError
        As for :func:`build_pyramid`.
    """
    from wkwdask.graphs.runners import num_workers

    if layer is not None and not isinstance(layer, str):
        raise TypeError(f"a plan is of one layer, got {layer!r}")
    if options.keys() & {"update", "bounding_box"}:
        raise TypeError("a plan is of a whole pyramid: update= and bounding_box= are for build_pyramid")
    existing = options.pop("existing", "error")
    workers = num_workers()
    return estimate_pyramid(_warned(lay_out_pyramid(url, layer, _pyramid_options(url, options), existing, workers)), workers)


@storage_options(*storage_records())
def upsample(
    url: str | os.PathLike[str],
    layer: str | None = None,
    *,
    source: MagLike | None = None,
    finest: MagLike | None = None,
    mags: Sequence[MagLike] | None = None,
    existing: Literal["error", "resume", "overwrite"] = "error",
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Make finer mags of a layer from a coarse one: each voxel becomes a block of equal voxels.

    Runs on threads, or on the active dask Client; the result is the same. The mags appear whole, then the JSON lists them. What an interrupted
    call finished is kept: the same call goes on from there.

    Parameters
    ----------
    url : str or path
        A dataset or a layer. A mag's folder makes that mag the source.
    layer : str, optional
        The layer; may be omitted if there is only one.
    source : Mag, str, int or sequence of 3 int, optional
        The coarse mag to start from; by default the finest that has files.
    finest : Mag, str, int or sequence of 3 int, optional
        The finest mag to make, 1 by default. Between it and the source, the mags of WEBKNOSSOS's ladder (or those that other layers have) are made too; a
        mag that has data is left alone, unless it was made from the source by this function and ``existing`` is not ``"error"``.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags to make, in place of that ladder. Each is made from the source directly, by any factor on each axis.
    existing : {"error", "resume", "overwrite"}
        What to do where one of the mags already exists. ``"resume"`` goes on with an interrupted job (as every value but ``"overwrite"`` does) and does
        nothing where the job was finished; ``"overwrite"`` replaces the mags whole, and starts anew.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    **options
        How the new mags are stored; what is not given is as in the source. Raw blocks become LZ4HC, and files suit the box of each mag, at most 32 blocks long,
        or 8 where the source has a file for each block.
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
        What is there, or was interrupted, was made with other settings or from other data.
    MissingError
        There is no such layer, or the source has no files.
    UnsupportedError
        The path of a mag leads out of the dataset.
    FormatError
        A source file is broken.
    ValueError
        An option is invalid, or a mag is not finer than the source.

    Notes
    -----
    Voxel (x, y, z) of a new mag is voxel (x // fx, y // fy, z // fz) of the source, counted from the dataset's origin. A new mag's box is the layer's box in
    that mag: what the source holds beyond it is cut off.
    """
    from wkwdask.graphs.runners import num_workers, run_plan

    single = {name: Mag.parse(mag) for name, mag in (("source", source), ("finest", finest)) if mag is not None}
    wanted = UpsampleOptions(**single, mags=parse_mags(mags), stored=check(options_of(url), **options), allow_external=allow_external)
    return run_plan(lay_out_upsample(url, layer, wanted, existing, num_workers()))


def _pyramid_options(url: str | os.PathLike[str], values: dict[str, Any]) -> PyramidOptions:
    """Turn what a user gives into options."""
    of_ladder = {name: value for name, value in values.items() if name in _OF_LADDER}
    single = {name: mag_or_key(of_ladder[name]) for name in ("finest", "coarsest") if of_ladder.get(name) is not None}
    stored = check(options_of(url), **{name: value for name, value in values.items() if name not in _OF_LADDER})
    return PyramidOptions(**{**of_ladder, **single, "mags": parse_mags(of_ladder.get("mags"))}, stored=stored)


def _warned(pyramid: Pyramid) -> Pyramid:
    """Warn of what viewers would show wrong."""
    for note in pyramid.notes:
        warnings.warn(note, ViewerWarning, stacklevel=4)
    return pyramid
