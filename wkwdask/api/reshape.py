"""Storing what is there in another way."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from wkwdask.api.options import MagLike, StorageKeywords, parse_mags, refuse_options, storage_options
from wkwdask.api.scales import rechunk_scales
from wkwdask.errors import ExistsError
from wkwdask.formats.precomputed.layer import is_precomputed
from wkwdask.formats.precomputed.options import PrecomputedOptions
from wkwdask.formats.wkw.options import WkwOptions
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.model.options import check
from wkwdask.runs.report import Report, merge_reports
from wkwdask.runs.staged import is_interrupted_call
from wkwdask.verbs.wkw.rechunk import Move, RechunkOptions, check_moves, find_moves, lay_out_rechunk, prepare_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence


@storage_options(WkwOptions, PrecomputedOptions)
def rechunk(
    url: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    layer: str | Sequence[str] | None = None,
    mags: Sequence[MagLike] | str | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    existing: str = "error",
    verify: bool | None = None,
    allow_external: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Store mags with other files, blocks or compression, in their place or somewhere else; all voxels stay as they are.

    Where only the length of files changes, stored blocks are copied as they are: the disk sets the pace. So are the chunks of a precomputed volume that are
    images (jpeg, png, jxl), as long as they keep their size and options; jpeg that has to be encoded once more loses more, which a warning says. Else blocks
    are decoded and encoded, some megabytes at a time. A mag is built beside its place and appears when it is complete; in its own place the old one is kept
    until then.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag; or a Neuroglancer precomputed volume (``precomputed://PATH``), or a scale of one.
    target : str or path, optional
        Where a copy goes: a dataset for a dataset, a layer for a layer, a mag for a mag, a precomputed volume for one. By default they are replaced in their
        place.
    layer : str or sequence of str, optional
        The layers of a dataset, by default all.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags, by default all of each layer.
    bounding_box : BoundingBox, str or sequence, optional
        What to take over, in mag-1 voxels; only with a target.
    existing : {"error", "resume", "overwrite"}
        What to do where a mag of the target already exists. An interrupted job goes on in any case but ``"overwrite"``, which starts anew.
    verify : bool, optional
        Read all voxels back and compare them before a mag appears; by default where mags are replaced in their place.
    allow_external : bool
        Write where paths or links lead out of the dataset; by default that is refused.
    **options
        How mags or scales are stored; what is not given is unchanged. With ``level``, blocks are encoded again even where nothing else changes. With
        ``bounding_box``, files of WKW are at most as long as they were, and suit the box. A scale that is stored in chunks of several sizes gets one size.
        {options}

    Returns
    -------
    Report
        Least and greatest values are not known of mags whose blocks were copied.

    Raises
    ------
    BoundsError
        The box holds nothing of a mag.
    ExistsError
        A mag of the target is there and ``existing="error"``.
    FormatError
        A file is broken.
    LockedError
        Another job writes one of the mags.
    MissingError
        There is no such layer or mag.
    ResumeError
        What was interrupted was started with other settings or from other data.
    UnsupportedError
        A mag's path leaves the dataset.
    ValueError
        An option makes no sense.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    >>> report = wkwdask.rechunk(f"{folder}/1", file_len=2)
    >>> report.files
    1
    """
    if is_precomputed(url):
        refuse_options(f"{os.fspath(url)} is a precomputed volume", {"layer": layer, "bounding_box": bounding_box, "allow_external": allow_external})
        return rechunk_scales(url, target, mags, existing, verify, check(PrecomputedOptions, **options))
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    wanted = RechunkOptions(check(WkwOptions, **options), box, allow_external=allow_external)
    layers = [layer] if isinstance(layer, str) else layer
    moves = find_moves(url, target, layers, parse_mags(mags), allow_external=allow_external)
    reports = store_anew(url, target, moves, wanted, existing, verify)
    return merge_reports(reports) if reports else Report((), 0, 0.0, "nothing to do: all mags are stored like that")


def compress(url: str | os.PathLike[str], target: str | os.PathLike[str] | None = None, *, compression: str = "lz4hc", **options: Any) -> Report:
    """Compress mags, in their place or somewhere else: :func:`rechunk` with another compression.

    Parameters
    ----------
    url, target : str or path
        As for :func:`rechunk`.
    compression : {"lz4hc", "lz4", "raw"}
        How blocks are encoded.
    **options
        As for :func:`rechunk`.

    Returns
    -------
    Report

    Raises
    ------
    BoundsError, ExistsError, FormatError, LockedError, MissingError, ResumeError, UnsupportedError, ValueError
        As for :func:`rechunk`.
    """
    return rechunk(url, target, compression=compression, **options)


def store_anew(
    url: str | os.PathLike[str], target: str | os.PathLike[str] | None, moves: Sequence[Move], options: RechunkOptions, existing: str, verify: bool | None
) -> list[Report]:
    """Store mags anew, one after the other; gives the reports of those that were not stored like that."""
    from wkwdask.graphs.batch import check_can_be_repeated
    from wkwdask.graphs.runners import make, num_workers

    workers = num_workers()
    try:
        check_moves(moves, options, existing)
    except ExistsError:
        jobs = [lay_out_rechunk(move, options, existing, workers) for move in moves]
        if not is_interrupted_call([job.staged for job in jobs if job is not None]):
            raise
        existing = "resume"
    prepare_dataset(url, target)
    are_in_place = any(move.folder is None for move in moves)
    check_can_be_repeated(len(moves), starts_anew=options.stored.level is not None if are_in_place else existing == "overwrite")
    reports = []
    for move in moves:
        staged = lay_out_rechunk(move, options, existing, workers)
        if staged is not None:
            reports.append(make(replace(staged, verify=staged.in_place if verify is None else verify)))
    return reports
