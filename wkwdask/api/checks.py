"""Checking what is stored, mending it, and comparing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wkwdask.api.options import MagLike, parse_mags, positive_lengths
from wkwdask.formats.mending import REBUILD, RepairOptions
from wkwdask.formats.registry import location_of
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.store.paths import local_path
from wkwdask.verbs.diff import Diff, lay_out_diff
from wkwdask.verbs.manifest import Hashes, ManifestReport
from wkwdask.verbs.repair import RepairReport, RepairWork
from wkwdask.verbs.verify import lay_out_verification

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from wkwdask.verbs.verify import VerifyReport

_MOST_MAGS = 16  # of a layer that somebody would make


def verify(
    url: str | os.PathLike[str],
    *,
    layer: str | Sequence[str] | None = None,
    mags: Sequence[MagLike] | str | None = None,
    quick: bool = False,
    pyramid: bool | float = False,
    method: str | None = None,
) -> VerifyReport:
    """Check everything that is stored; nothing is ever written.

    Each data file is checked against ``header.wkw``: its header, its size, the order of its jump table, and that every block decodes to its length.
    Names, positions, left-overs of dead processes and ``datasource-properties.json`` are checked too. Some megabytes of a file are in memory at once. A data
    file that is absent is no fault, since it reads as zeros, unless the mag's own record says that it was there.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag, or a local image of any other format or one of its levels.
    layer : str or sequence of str, optional
        The layers, by default all.
    mags : sequence of Mag, str, int or sequence of 3 int, optional
        The mags, by default all of each layer.
    quick : bool
        Look at headers, tables, names and the JSON; decode no block.
    pyramid : bool or float
        Compute the files of coarser mags anew from the finer one, and compare; a number from 0 to 1 does so for that share of the files, the same in each
        run.
    method : {"median", "mode", "mean", "min", "max", "nearest"}, optional
        How coarser mags were made that do not say so; by default median for images and mode for labels.

    Returns
    -------
    VerifyReport
        ``is_sound`` tells whether there is no error, ``faults`` lists all that is wrong.

    Raises
    ------
    MissingError
        There is no such dataset, layer or mag.
    ValueError
        An option makes no sense.

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
    >>> [(fault.kind, fault.block, fault.voxel) for fault in wkwdask.verify(f"{folder}/1").faults if fault.severity == "error"]
    [('file.truncated', 0, (0, 32, 0))]
    """
    from wkwdask.graphs.runners import carry_out

    layers = [layer] if isinstance(layer, str) else layer
    return carry_out(lay_out_verification(url, layers, parse_mags(mags), decode=not quick, pyramid=float(pyramid), method=method))


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
) -> RepairReport:
    """Mend what :func:`verify` finds. Good data are never touched; what can be decoded is kept byte for byte.

    Of levels in other formats than WKW, leftovers go and broken files of coarser levels are rebuilt; headers, single blocks and the JSON are WKW's.

    Without an option this removes what dead processes left, writes ``header.wkw`` and the headers of data files anew where the blocks prove what they should
    say, cuts off bytes behind the last block, rebuilds broken files of coarser mags from a sound finer one, and corrects the JSON. What a finest mag has lost
    is lost: options say what becomes of it. Files of a coarser mag that records no method are rebuilt where ``method`` is given, and blocks of it that can be
    decoded stay.

    Parameters
    ----------
    url : str or path
        A dataset, a layer or a mag.
    dry_run : bool
        Change nothing, and say what would be done.
    layer, mags
        As for :func:`verify`.
    salvage : bool
        Broken blocks of a file that cannot be rebuilt become zeros and all its other blocks are kept; the old file is set aside.
    quarantine : bool
        Set files aside that cannot be mended, in ``.wkwdask-quarantine`` beside the mag: their place then reads as zeros.
    drop_missing : bool
        Take mags off the JSON that are not there.
    grow_box : bool
        Let the JSON's box grow around voxels that are not zero and lie outside.
    rebuild_differing : bool
        Rebuild files of coarser mags that differ from the finer one; the old ones are set aside.
    method : {"median", "mode", "mean", "min", "max", "nearest"}, optional
        Method of coarser mags that do not record it: their files are rebuilt only where it is given.
    voxel_size : sequence of 3 float, optional
        Edge lengths of a voxel of mag 1 [nm], for a JSON that has to be written anew.
    older_than : float
        Age from which temporary files of other software are taken for left-overs [s].
    remove_copies : bool
        Remove mags that webknossos left half-way while it replaced others, where all mags of the layer are sound and have every voxel that they hold.
    allow_external : bool
        Mend mags that lie outside of the dataset too; by default they are left alone.

    Returns
    -------
    RepairReport
        What was done, and what stays.

    Raises
    ------
    LockedError
        A job that is running writes one of the mags.
    MissingError
        There is no such dataset, layer or mag.
    ResumeError
        An interrupted job that can go on writes one of the mags.
    ValueError
        An option makes no sense.
    """
    from wkwdask.graphs.runners import carry_out

    size = None if voxel_size is None else positive_lengths([float(length) for length in voxel_size])
    options = RepairOptions(salvage, quarantine, drop_missing, grow_box, rebuild_differing, method, size, older_than, remove_copies, allow_external)

    layers = [layer] if isinstance(layer, str) else layer

    def once() -> RepairReport:
        checked = lay_out_verification(url, layers, parse_mags(mags), decode=True, pyramid=float(rebuild_differing), method=method)
        return carry_out(RepairWork(checked, options, dry_run=dry_run))

    report = last = once()
    for _ in range(_MOST_MAGS if rebuild_differing and not dry_run else 0):
        if not any(action.verb == REBUILD for action in last.actions):
            break
        last = once()  # still coarser files may differ from what was rebuilt just now
        report = replace(last, actions=(*report.actions, *last.actions))
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
        Datasets, layers or mags; also one mag and what :func:`convert` imports (an array or sections), whose first voxel is the corner of the mag's box.
    layer : str, optional
        The layer, by default all that both have; single layers are compared whatever their names.
    mag : Mag, str, int or sequence of 3 int, optional
        The mag, by default all that both have.
    bounding_box : BoundingBox, str or sequence, optional
        Where, in mag-1 voxels.

    Returns
    -------
    Diff
        ``equal``, and for each mag the number of voxels that differ, the first ten of them and the box around all. Every bit counts, so that NaN equals
        itself. Boxes, types or channels that are not alike are named, and are a difference.

    Raises
    ------
    BoundsError
        The box holds nothing of a mag.
    FormatError
        A file is broken.
    MissingError
        There is no such dataset, layer or mag, or nothing that both have.
    ValueError
        Two mags are named, and they are different ones.

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
    from wkwdask.graphs.runners import carry_out

    box = None if bounding_box is None else BoundingBox.parse(bounding_box)
    return carry_out(lay_out_diff(first, second, layer, None if mag is None else Mag.parse(mag), box))


def write_manifest(url: str | os.PathLike[str]) -> ManifestReport:
    """Write the SHA-256 of every file below a folder to ``wkwdask-manifest.txt`` in it, for a move between sites; ``sha256sum -c`` can check it too.

    Parameters
    ----------
    url : str or path
        A dataset, or any other folder.

    Returns
    -------
    ManifestReport

    Raises
    ------
    UnsupportedError
        It is a URL of another kind.
    """
    return _hashed(url).write()


def check_manifest(url: str | os.PathLike[str]) -> ManifestReport:
    """Hash every file below a folder, and compare with its manifest.

    Parameters
    ----------
    url : str or path
        A folder that holds a manifest.

    Returns
    -------
    ManifestReport
        Missing, changed and additional files; ``is_equal`` where there are none.

    Raises
    ------
    CorruptError
        The manifest is broken.
    MissingError
        There is no manifest.
    """
    return _hashed(url).check()


def _hashed(url: str | os.PathLike[str]) -> Hashes:
    from wkwdask.graphs.runners import carry_out

    hashes = Hashes(local_path(location_of(url)))
    carry_out(hashes)
    return hashes
