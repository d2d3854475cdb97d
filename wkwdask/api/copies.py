"""Rechunk, compress, copy and remove stored mags."""

from __future__ import annotations

import contextlib
import os
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from wkwdask.api.options import MagLike, StorageKeywords, parse_levels, parse_mags, storage_options
from wkwdask.formats.opening import options_class, place_of_copy, prefixed_url
from wkwdask.formats.registry import opening_format, storage_records
from wkwdask.formats.replaceable import replaces
from wkwdask.formats.roots import level_job_folders, root_of
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import vec3
from wkwdask.model.options import make_options, options_of
from wkwdask.runs.calls import same_call
from wkwdask.runs.report import Report, RmReport, merge_reports
from wkwdask.runs.staged import finish_interrupted_publication
from wkwdask.store.looks import looking
from wkwdask.store.paths import is_bucket, target_path
from wkwdask.store.store import store_at
from wkwdask.verbs.rechunk import RechunkOptions, check_apart, lay_out_rechunk, levels_in_box
from wkwdask.verbs.remove import RemovalWork, lay_out_removals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from wkwdask.formats.format import ArrayFormat
    from wkwdask.model.writing.target_image import LevelCopy
    from wkwdask.verbs.rechunk import Rechunk


@storage_options(*storage_records())
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
    force_space: bool = False,
    **options: Unpack[StorageKeywords],
) -> Report:
    """Store mags with other files, blocks or compression, in place or in another location.

    Voxel values do not change.

    If only the length of files or shards changes, encoded chunks are copied without decoding, at
    the speed of the disk. So are chunks of a precomputed volume that keep their size and encoding:
    at most gzip around them changes. A warning is issued if jpeg must be encoded again and loses
    quality. Otherwise chunks are decoded and encoded, a few megabytes at a time. A mag is built in
    a temporary folder and published when it is complete; a mag that is replaced in place is kept
    until then.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag; or a Neuroglancer precomputed volume (``precomputed://PATH``),
        or a scale of one.
    target : str or path, optional
        Location of a copy, of the same kind as the source: a dataset, a layer, a mag or a
        precomputed volume. By default mags are replaced in place.
    layer : str or sequence of str, optional
        The layers of a dataset, by default all.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags, by default all of each layer.
    bounding_box : BoundingBox, str or sequence, optional
        Part to store: x, y, z, width, height, depth [voxels of mag 1]; needs a target.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if a mag of the target exists. An interrupted job is resumed, except with
        ``"restart"``, which starts over and replaces like ``"overwrite"``.
    verify : bool, optional
        Read all voxels back and compare them before a mag is published; by default True if mags are
        replaced in place.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.
    **options
        Storage options of the mags or scales, by default unchanged. ``level`` encodes blocks again
        even if nothing else changes. With ``bounding_box``, WKW files are sized to fit the box, at
        most as long as before. A scale with several chunk sizes gets a single one.
        {options}

    Returns
    -------
    Report
        Minimum and maximum are unknown for mags with copied blocks.

    Raises
    ------
    BoundsError
        The box does not touch a mag.
    ExistsError
        A mag of the target exists and ``existing="error"``.
    FormatError
        A file is broken.
    LockedError
        Another job is writing one of the mags.
    MissingError
        The layer or mag does not exist.
    ResumeError
        The interrupted job was started with other settings or from other data.
    UnsupportedError
        The path of a mag leads out of the dataset.
    ValueError
        An option is invalid.

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
    url = prefixed_url(url)
    source_format = opening_format(url)
    source_format.check_writable(url)
    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    layers = [layer] if isinstance(layer, str) else layer
    rechunk_options = RechunkOptions(
        make_options(options_class(url, layers), **options), box, allow_external=allow_external
    )
    copies, source = source_format.copies, source_format.url_name.location(url)
    place = None if target is None else place_of_copy(target, source_format)
    levels = parse_levels(mags)

    def find_levels() -> list[LevelCopy]:
        found = source_format.find(url).allowing_external(allow=allow_external)
        return copies.levels(found, place, layers, levels)

    notes = [] if place is None else copies.warnings(source, find_levels(), layers)
    reports = _rechunk_levels(
        source_format,
        find_levels,
        rechunk_options,
        existing,
        verify,
        contextlib.nullcontext if place is None else partial(copies.prepare, source, place),
        force_space=force_space,
    )
    if not reports:
        return Report((), 0, 0.0, "nothing to do: all mags are already stored like that")
    report = merge_reports(reports)
    return replace(report, note="; ".join(filter(None, (report.note, *notes))))


def compress(
    url: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    compression: str | None = None,
    **options: Any,
) -> Report:
    """Compress mags, in place or in another location: :func:`rechunk` with another compression.

    Parameters
    ----------
    url, target : str or path
        As for :func:`rechunk`.
    compression : str, optional
        Compression of chunks. Default: LZ4HC in WKW, Zstandard in Zarr, gzip in N5. A precomputed
        volume needs a storage option, such as ``encoding=`` or ``compression=``.
    **options
        As for :func:`rechunk`.

    Returns
    -------
    Report

    Raises
    ------
    BoundsError, ExistsError, FormatError, LockedError, MissingError, ResumeError, UnsupportedError, ValueError
        As for :func:`rechunk`; also a ValueError for a precomputed volume without a storage option.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(
    ...     f"{folder}/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), compression="raw"
    ... )
    >>> report = wkwdask.compress(f"{folder}/1")
    >>> report.nbytes_out < report.nbytes_in
    True
    """  # noqa: E501
    url = prefixed_url(url)
    layer = options.get("layer")
    record = options_class(url, [layer] if isinstance(layer, str) else layer)
    names = [name for name, _ in options_of(record)]
    if (
        names
        and compression is None
        and not record.compressor
        and all(options.get(name) is None for name in names)
    ):
        raise ValueError(
            f"{os.fspath(url)}: say how to compress {record.title}, by one of its options: "
            f"{', '.join(names)}"
        )
    return rechunk(url, target, compression=compression or record.compressor or None, **options)


@same_call()
def _rechunk_levels(
    source_format: ArrayFormat,
    find_levels: Callable[[], list[LevelCopy]],
    options: RechunkOptions,
    existing: str,
    verify: bool | None,
    prepare: Callable[[], AbstractContextManager[None]],
    *,
    force_space: bool,
) -> list[Report]:
    """Store levels again, one after the other; return the reports of those that changed."""
    from wkwdask.graphs.job_array import check_restartable
    from wkwdask.graphs.runners import accepting_own, num_workers, resolve_existing, run_plan

    level_copies, left_out = levels_in_box(find_levels(), options.box)
    in_place = [level_copy for level_copy in level_copies if level_copy.destination is None]
    # A call that was killed while it replaced a mag in place may have left it renamed: complete the
    # replacement, then look for the mags again.
    for level_copy in in_place:
        target_path(level_copy.level.folder)  # raises an error where nothing is written
        parent, folder = level_job_folders(level_copy.image, level_copy.level)
        finish_interrupted_publication(
            parent, folder, options.command, root_of(level_copy.image).folder
        )
    if in_place:
        level_copies = find_levels()
        # One mag may be listed by several layers. It can be replaced in place only once, so the
        # layer has to be named.
        listed = {
            (store_at(level_copy.level.folder).real(), level_copy.image.folder)
            for level_copy in level_copies
        }
        if len({folder for folder, _ in listed}) < len(listed):
            raise ValueError("several layers list the same mag; choose one with layer=")
    workers = num_workers()

    def stage(level_copy: LevelCopy, existing: str) -> Rechunk | None:
        return lay_out_rechunk(source_format, level_copy, options, existing, workers)

    check_restartable(
        len(level_copies),
        overwrites="level" in options.stored.explicit() if in_place else replaces(existing),
    )
    # All levels are planned once before the first is stored: an invalid option or an existing
    # target must not leave a part of them done.
    if in_place:
        level_copies = [
            level_copy for level_copy in level_copies if stage(level_copy, existing) is not None
        ]
    else:
        existing = resolve_existing(
            [partial(stage, level_copy) for level_copy in level_copies],
            existing,
            force_space=force_space,
        )
    reports = []
    with contextlib.nullcontext() if in_place else prepare():
        for level_copy in level_copies:
            staged = stage(level_copy, existing)
            if staged is None:  # a concurrent call stored it already
                continue
            staged = staged if staged.in_place else accepting_own(staged, existing)
            # Lossy encodings change voxels, so they are compared only if verify=True asks for it.
            is_exact = not staged.decodes or staged.loss is None
            for note in (
                *staged.notes,
                *([] if is_exact or not staged.loss else [UserWarning(staged.loss)]),
            ):
                warnings.warn(note, stacklevel=4)
            reports.append(
                run_plan(
                    replace(
                        staged, verify=staged.in_place and is_exact if verify is None else verify
                    ),
                    force_space=force_space,
                )
            )
    return [
        *(
            replace(report, note="; ".join(filter(None, [report.note, left_out])))
            for report in reports[:1]
        ),
        *reports[1:],
    ]


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
    force_space: bool = False,
) -> Report:
    """Copy a dataset, a layer or a mag, or a box of it, and optionally translate it.

    Whole files are copied if each becomes one file of the copy, else encoded chunks if each becomes
    one chunk. Chunks are decoded only if the box cuts them or, in WKW, voxels move by a fraction of
    a block. A mag is published when it is complete.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    target : str or path
        Location of the copy, of the same kind as the source: a dataset, a layer or a mag; the name
        may differ. Existing layers of a dataset stay.
    layer : str or sequence of str, optional
        The layers of a dataset, by default all.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags, by default all of each layer.
    bounding_box : BoundingBox, str or sequence, optional
        Part to copy: x, y, z, width, height, depth [voxels of mag 1 of the source]; everything
        outside is zero in the copy.
    translate : sequence of 3 int
        Offset added to all positions along x, y, z [voxels of mag 1]; a multiple of each copied
        mag.
    existing : {"error", "resume", "overwrite", "restart"}
        Action if a mag of the target exists. An interrupted copy is resumed, except with
        ``"restart"``, which starts over and replaces like ``"overwrite"``.
    verify : bool
        Read all voxels back and compare them before a mag is published.
    allow_external : bool
        Allow writing where paths or links lead out of the dataset; refused by default.
    force_space : bool
        Start although the result very probably does not fit on the disk; refused by default.

    Returns
    -------
    Report
        Its note lists what was not copied, such as files outside of mags.

    Raises
    ------
    BoundsError
        The box does not touch a mag, or a mag would begin at a negative position.
    ExistsError
        A mag of the target exists and ``existing="error"``.
    FormatError
        A file is broken.
    LockedError
        Another job is writing one of the mags.
    MissingError
        The layer or mag does not exist.
    ResumeError
        The interrupted job was started with other settings or from other data.
    UnsupportedError
        A layer is stored in a format that is unknown here.
    ValueError
        The target is the source or lies inside of it, or ``translate`` is not a multiple of a mag.

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
    url = prefixed_url(url)
    source_format = opening_format(url)
    source_format.check_writable(url)
    options = RechunkOptions(
        source_format.options(), box, vec3(translate, "translate"), "copy", allow_external
    )
    chosen_layers = [layer] if isinstance(layer, str) else layer
    copies, source = source_format.copies, source_format.url_name.location(url)
    place = place_of_copy(target, source_format)
    check_apart(place, source)
    layers = copies.default_layers(source) if chosen_layers is None else chosen_layers
    levels = parse_levels(mags)

    def find_levels() -> list[LevelCopy]:
        return copies.levels(source_format.find(url), place, layers, levels)

    warnings_of_copy = copies.warnings(source, find_levels(), layers)
    prepare = partial(copies.prepare, source, place)
    report = merge_reports(
        _rechunk_levels(
            source_format, find_levels, options, existing, verify, prepare, force_space=force_space
        )
    )
    return replace(report, note="; ".join(filter(None, (report.note, *warnings_of_copy))))


@looking()
def rm(
    url: str | os.PathLike[str],
    *,
    layer: str | Sequence[str] | None = None,
    mags: Sequence[MagLike] | str | None = None,
    dry_run: bool = False,
    allow_external: bool = False,
) -> RmReport:
    """Delete a dataset, a layer or mags, or an image in any other format or its levels.

    First the mags are removed from the JSON or other metadata, then each mag is renamed away in one
    step, then the files are deleted in parallel. In a bucket nothing is renamed, and the files stay
    for a week. The same call completes an interrupted removal.
    Only mags and empty folders are deleted; symbolic links are not followed.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    layer : str or sequence of str, optional
        The layers of a dataset, by default all.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags, by default all of each layer.
    dry_run : bool
        Delete nothing; report what would be removed.
    allow_external : bool
        Also remove mags outside the dataset and the links to them; refused by default. Other
        datasets may still list these mags.

    Returns
    -------
    RmReport
        Files, bytes, the folders of the mags, and other files beside them, which stay.

    Raises
    ------
    LockedError
        Another job is writing one of the mags.
    MissingError
        The layer or mag does not exist.
    UnsupportedError
        A mag is a symbolic link, lies outside its dataset, has another format, or contains other
        files.

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
    removals = lay_out_removals(
        url,
        [layer] if isinstance(layer, str) else layer,
        parse_mags(mags),
        dry_run=dry_run,
        allow_external=allow_external,
    )
    if dry_run:
        counts = [staged.count() for staged in removals.staged]
        return RmReport(
            sum(count for count, _ in counts),
            sum(nbytes for _, nbytes in counts),
            removals.paths,
            removals.left,
            "dry run: nothing was removed",
        )
    from wkwdask.graphs.runners import run_work

    num_files, nbytes = run_work(RemovalWork(removals))
    removals.clear()
    left = tuple(path for path in removals.left if store_at(path).is_taken())
    notes = []
    if removals.roots:
        notes.append("deleted the rest of an interrupted removal too")
    if any(map(is_bucket, removals.paths)):
        notes.append(
            "for readers that opened the mags before, their files stay for a week, or until "
            "wkwdask clean --grace 0"
        )
    return RmReport(num_files, nbytes, removals.paths, left, "; ".join(notes))
