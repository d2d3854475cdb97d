"""Verify, repair and compare stored volumes, and write manifests of their files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.api.options import MagLike, parse_mags, parse_voxel_size
from wkwdask.formats.registry import location_of
from wkwdask.formats.repair import REBUILD, RepairOptions
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.store.paths import target_path
from wkwdask.verbs.diff import Diff, lay_out_diff
from wkwdask.verbs.manifest import Hashes, ManifestReport
from wkwdask.verbs.repair import RepairReport, RepairWork
from wkwdask.verbs.verify import lay_out_verification

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.verbs.verify import VerifyReport

_MOST_MAGS = 16  # a layer has fewer; bounds the repeated passes of repair(rebuild_differing=True)


def verify(
    url: str | os.PathLike[str],
    *,
    layer: str | Sequence[str] | None = None,
    mags: Sequence[MagLike] | str | None = None,
    quick: bool = False,
    pyramid: bool | float = False,
    method: str | None = None,
) -> VerifyReport:
    """Check all files, blocks and records; never write anything.

    Each data file is compared with ``header.wkw``: its header, its size, the order of its jump
    table, and the length of every decoded block. Names, positions, leftover files of dead processes
    and ``datasource-properties.json`` are checked too. A few megabytes of a file are in memory at a
    time. A missing data file reads as zeros, so it is a fault only if the mag's own record lists
    it. In other formats, the tables of shards, every chunk, names, leftover files, and the
    documents of images and levels are checked.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag; or an image of another format, or one of its levels.
    layer : str or sequence of str, optional
        The layers, by default all.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags, by default all of each layer.
    quick : bool
        Check headers, jump tables, names and the JSON only; decode no block.
    pyramid : bool or float
        Compute the files of coarser mags again from the finer mag and compare them. A number from 0
        to 1 checks that share of the files, the same files in each run.
    method : {"median", "mode", "mean", "min", "max", "nearest"}, optional
        Downsampling method of coarser mags that do not record it; by default median for images
        (mean in precomputed volumes) and mode for labels.

    Returns
    -------
    VerifyReport
        ``is_sound`` is True without errors; ``faults`` lists all findings.

    Raises
    ------
    MissingError
        The dataset, layer or mag does not exist.
    ValueError
        An option is invalid.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    >>> wkwdask.verify(f"{folder}/1").is_sound
    True
    >>> with open(f"{folder}/1/z0/y1/x0.wkw", "r+b") as file:
    ...     _ = file.truncate(30)
    >>> [
    ...     (fault.kind, fault.block, fault.voxel)
    ...     for fault in wkwdask.verify(f"{folder}/1").faults
    ...     if fault.severity == "error"
    ... ]
    [('file.truncated', 0, (0, 32, 0))]
    """
    from wkwdask.graphs.runners import run_work

    if method is not None and not pyramid:
        raise ValueError("method= is for the comparison of coarser mags: it needs pyramid=")
    layers = [layer] if isinstance(layer, str) else layer
    return run_work(
        lay_out_verification(
            url, layers, parse_mags(mags), decode=not quick, pyramid=float(pyramid), method=method
        )
    )


def repair(
    url: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    layer: str | Sequence[str] | None = None,
    mags: Sequence[MagLike] | str | None = None,
    salvage: bool = False,
    quarantine: bool = False,
    drop_missing: bool = False,
    grow_box: bool = False,
    rebuild_differing: bool = False,
    method: str | None = None,
    voxel_size: Sequence[float] | None = None,
    older_than: float = 3600.0,
    remove_copies: bool = False,
    allow_external: bool = False,
    accept_changes: bool = False,
) -> RepairReport:
    """Repair the faults that :func:`verify` finds.

    Intact data are never changed; blocks that can be decoded are kept byte for byte.

    Without options, this removes leftover files of dead processes, rewrites ``header.wkw`` and the
    headers of data files if the blocks determine their content, cuts off bytes behind the last
    block, rebuilds broken files of coarser mags from an intact finer mag, and corrects the JSON.
    Lost voxels of the finest mag cannot be recovered; options choose what replaces them. Files of a
    coarser mag that records no method are rebuilt only if ``method`` is given; its blocks that can
    be decoded stay.

    In Zarr and N5, the index of a shard is corrected where its checksum proves the correction, and
    lost chunks become absent. In other formats, leftover files are removed and broken files of
    coarser levels are rebuilt.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    dry_run : bool
        Change nothing; report the planned actions.
    layer, mags
        As for :func:`verify`.
    salvage : bool
        Replace broken blocks of files that cannot be rebuilt by zeros and keep all other blocks;
        the old files are set aside.
    quarantine : bool
        Move files that cannot be repaired to ``.wkwdask-quarantine`` beside the mag; their voxels
        then read as zeros.
    drop_missing : bool
        Remove missing mags from the JSON.
    grow_box : bool
        Extend the box in the JSON to all voxels that are not zero.
    rebuild_differing : bool
        Rebuild files of coarser mags that differ from the finer mag; the old files are set aside.
    method : {"median", "mode", "mean", "min", "max", "nearest"}, optional
        Downsampling method of coarser mags that do not record it; without it, their files are not
        rebuilt.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 [nm], for a JSON that must be rewritten.
    older_than : float
        Age above which temporary files of other software count as leftovers [s].
    remove_copies : bool
        Remove unfinished mags that webknossos left while it replaced others, if all mags of the
        layer are intact and hold every voxel of them.
    allow_external : bool
        Also repair mags outside the dataset; by default they are not changed.
    accept_changes : bool
        Accept files that other software removed or wrote after a job of wkwdask, such as chunks
        that became background: they stay unchanged, and the record of the files takes them over.
        Lost files that a finer mag can rebuild are rebuilt.

    Returns
    -------
    RepairReport
        Actions that were done, and faults that remain.

    Raises
    ------
    LockedError
        A running job writes one of the mags.
    MissingError
        The dataset, layer or mag does not exist.
    ResumeError
        An interrupted job that can be resumed writes one of the mags.
    ValueError
        An option is invalid.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    >>> with open(f"{folder}/1/z0/y1/x0.wkw", "r+b") as file:
    ...     _ = file.truncate(30)
    >>> report = wkwdask.repair(f"{folder}/1", quarantine=True)
    >>> len(report.actions), report.is_sound
    (1, True)
    """
    from wkwdask.graphs.runners import run_work

    size = None if voxel_size is None else parse_voxel_size(voxel_size)
    options = RepairOptions(
        salvage,
        quarantine,
        drop_missing,
        grow_box,
        rebuild_differing,
        method,
        size,
        older_than,
        remove_copies,
        allow_external,
        accept_changes,
    )

    target_path(location_of(url))  # raises an error for a web server
    layers = [layer] if isinstance(layer, str) else layer

    def repair_once() -> RepairReport:
        verification = lay_out_verification(
            url,
            layers,
            parse_mags(mags),
            decode=True,
            pyramid=float(rebuild_differing),
            method=method,
        )
        verification.format.check_writable(url)
        return run_work(RepairWork(verification, options, dry_run=dry_run))

    report = latest = repair_once()
    for _ in range(_MOST_MAGS if rebuild_differing and not dry_run else 0):
        if not any(action.verb == REBUILD for action in latest.actions):
            break
        # the files rebuilt just now may differ from those of the next coarser mag
        latest = repair_once()
        report = replace(latest, actions=(*report.actions, *latest.actions))
    return report


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    layer: str | None = None,
    mag: MagLike | None = None,
    bounding_box: BoundingBox | str | Sequence[Any] | None = None,
) -> Diff:
    """Compare two datasets, layers or mags voxel by voxel, however each is stored.

    Parameters
    ----------
    first, second : str or path
        Datasets, layers or mags. Also a mag and a source of :func:`convert` (an array or sections),
        whose first voxel is the corner of the mag's box.
    layer : str, optional
        The layer, by default all common layers. Two single layers are compared regardless of their
        names.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, by default all common mags.
    bounding_box : BoundingBox, str or sequence, optional
        Part to compare: x, y, z, width, height, depth [voxels of mag 1].

    Returns
    -------
    Diff
        ``equal``, and for each mag the number of different voxels, the first ten of them and the
        box around all. Values are compared bit by bit, so NaN equals NaN. Different boxes, types or
        channels are a difference too, and are named.

    Raises
    ------
    BoundsError
        The box does not touch a mag.
    FormatError
        A file is broken.
    MissingError
        A dataset, layer or mag does not exist, or the two have none in common.
    ValueError
        The two URLs name different mags.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> array = np.ones((64, 64, 64), np.uint8)
    >>> _ = wkwdask.write(f"{folder}/a/1", (0, 0, 0), array)
    >>> array[3, 2, 1] = 9
    >>> _ = wkwdask.write(f"{folder}/b/1", (0, 0, 0), array, block_len=8, file_len=8)
    >>> print(wkwdask.diff(f"{folder}/a/1", f"{folder}/b/1", bounding_box=(0, 0, 0, 64, 64, 64)))
    a/1: voxel (3, 2, 1) of channel 0: 1 and 9
    a/1: DIFFERENT: 1 of 262,144 voxels differ, all in (3, 2, 1) + (1, 1, 1) in mag 1
    different
    """
    from wkwdask.graphs.runners import run_work

    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    return run_work(
        lay_out_diff(first, second, layer, None if mag is None else Mag.parse(mag), box)
    )


def write_manifest(url: str | os.PathLike[str]) -> ManifestReport:
    """Write the SHA-256 hashes of all files below a folder, to check them after a transfer.

    The manifest is the file ``wkwdask-manifest.txt`` in the folder.

    ``sha256sum -c wkwdask-manifest.txt`` checks the same file.

    Parameters
    ----------
    url : str or path
        A dataset, or any other folder, on disk or in a bucket.

    Returns
    -------
    ManifestReport

    Raises
    ------
    UnsupportedError
        The URL is on a web server.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import wkwdask
    >>> folder = tempfile.mkdtemp()
    >>> _ = wkwdask.write(f"{folder}/raw/1", (0, 0, 0), np.ones((64, 64, 64), np.uint8), file_len=1)
    >>> _ = wkwdask.write_manifest(folder)
    >>> wkwdask.check_manifest(folder).is_equal
    True
    """
    return _hashed(url).write()


def check_manifest(url: str | os.PathLike[str]) -> ManifestReport:
    """Hash all files below a folder and compare them with its manifest.

    Parameters
    ----------
    url : str or path
        A folder with a manifest.

    Returns
    -------
    ManifestReport
        Missing, changed and additional files; ``is_equal`` is True without any.

    Raises
    ------
    CorruptError
        The manifest is broken.
    MissingError
        The folder has no manifest.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import wkwdask
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("one")
    >>> _ = wkwdask.write_manifest(folder)
    >>> _ = (folder / "a.txt").write_text("two")
    >>> wkwdask.check_manifest(folder).changed
    ('a.txt',)
    """
    return _hashed(url).check()


def _hashed(url: str | os.PathLike[str]) -> Hashes:
    from wkwdask.graphs.runners import run_work

    hashes = Hashes(target_path(location_of(url)))
    run_work(hashes)
    return hashes
