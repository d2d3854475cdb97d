"""Copying and removing what is there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.api.options import MagLike, items_of, parse_mags
from wkwdask.api.reshape import store_anew
from wkwdask.formats.registry import fallback, format_of
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import vec3
from wkwdask.model.image import mag_or_key
from wkwdask.runs.report import Report, RmReport, merge_reports
from wkwdask.store import files
from wkwdask.verbs.rechunk import RechunkOptions
from wkwdask.verbs.remove import Removing, lay_out_removals

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


def copy(
    url: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    layer: str | Sequence[str] | None = None,
    mags: Sequence[MagLike] | str | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
    translate: Sequence[int] = (0, 0, 0),
    existing: str = "error",
    verify: bool = False,
    allow_external: bool = False,
) -> Report:
    """Copy a dataset, a layer or a mag, whole or a box of it, to the same or to another place in space.

    Files are copied as they are where each becomes one file again, stored blocks where each becomes one block again. Only where a box cuts blocks, or
    voxels move by less than a block, are blocks decoded. A mag appears when it is complete.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    target : str or path
        Where it goes: a dataset for a dataset, a layer for a layer, a mag for a mag; under the same name or another one. Layers that a dataset has already
        stay.
    layer : str or sequence of str, optional
        The layers of a dataset, by default all that are stored as WKW.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags, by default all of each layer.
    bounding_box : BoundingBox, str or sequence, optional
        What to copy, in mag-1 voxels of the source; everything outside is zero in the copy.
    translate : sequence of 3 int
        By what all voxels move along x, y, z [voxels of mag 1]; a multiple of every mag that is copied.
    existing : {"error", "resume", "overwrite"}
        What to do where a mag of the target already exists. An interrupted copy goes on in any case but ``"overwrite"``, which starts anew.
    verify : bool
        Read all voxels back and compare them before a mag appears.
    allow_external : bool
        Write where paths or links lead out of the dataset; by default that is refused.

    Returns
    -------
    Report
        Its note names what was not copied: layers of other formats, and files that are no mags.

    Raises
    ------
    BoundsError
        The box holds nothing of a mag, or a mag would begin at a negative place.
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
        A layer that was named is stored in another format.
    ValueError
        The target is the source; or voxels would come to lie between voxels.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/raw/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    >>> wkwdask.copy(f"{folder}/raw", f"{folder}/moved", translate=(32, 0, 0)).files
    8
    """
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    its_format = format_of(url) or fallback()
    options = RechunkOptions(its_format.options(), box, vec3(translate, "translate"), "copy", allow_external)
    named = [layer] if isinstance(layer, str) else layer
    layers = its_format.copied(url) if named is None else named
    chosen = None if mags is None else [found for one in items_of(mags) if (found := mag_or_key(one)) is not None]
    find = partial(its_format.moves, url, target, layers, chosen)
    left = its_format.not_moved(url, find(), layers)
    report = merge_reports(store_anew(its_format, find, options, existing, verify, partial(its_format.prepare_copy, url, target)))
    return replace(report, note="; ".join(filter(None, (report.note, *left))))


def rm(
    url: str | os.PathLike[str],
    *,
    layer: str | Sequence[str] | None = None,
    mags: Sequence[MagLike] | str | None = None,
    dry_run: bool = False,
    allow_external: bool = False,
) -> RmReport:
    """Remove a dataset, a layer or mags for good, or an image of any other format or levels of it.

    The JSON, or what else lists them, forgets the mags first, then they vanish from sight, each at once, then their files are deleted in parallel. Where
    that is interrupted, the same call deletes the rest. Nothing but mags is deleted, and folders in which nothing is left; symbolic links are not followed.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    layer : str or sequence of str, optional
        The layers of a dataset, by default all that are stored as WKW.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags, by default all of each layer.
    dry_run : bool
        Only say what would be removed.
    allow_external : bool
        Remove what lies outside of the dataset too, and the links that lead there; by default that is refused. Whether other datasets list it cannot be known.

    Returns
    -------
    RmReport
        Files, bytes, the mags' folders, and what was found beside them and stays.

    Raises
    ------
    LockedError
        Another job writes one of the mags.
    MissingError
        There is no such layer or mag.
    UnsupportedError
        A mag is a symbolic link, lies outside of its dataset, is of another format, or holds something else.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/raw/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    >>> len(wkwdask.rm(f"{folder}/raw/1").paths)
    1
    """
    removals = lay_out_removals(url, [layer] if isinstance(layer, str) else layer, parse_mags(mags), dry_run=dry_run, allow_external=allow_external)
    if dry_run:
        counts = [staged.count() for staged in removals.staged]
        return RmReport(sum(count for count, _ in counts), sum(nbytes for _, nbytes in counts), removals.paths, removals.left, "a dry run: nothing was removed")
    from wkwdask.graphs.runners import carry_out

    num_files, nbytes = carry_out(Removing(removals))
    removals.clear()
    left = tuple(path for path in removals.left if files.lexists(path))
    note = "what an earlier call had left was deleted too" if removals.roots else ""
    return RmReport(num_files, nbytes, removals.paths, left, note)
