"""Mending one data file: all blocks that can be decoded are kept byte for byte, behind a new header and jump table. And setting files aside."""

from __future__ import annotations

import itertools
import os
import shutil
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.wkw.block import DEFAULT_LEVEL
from wkwdask.formats.wkw.file import format_file_head
from wkwdask.kernels.blocks import zero_encoding
from wkwdask.storage.local import NewFile, publish_bytes
from wkwdask.storage.pieces import Pieces
from wkwdask.storage.records import RECORD_COLUMNS, read_record, write_record
from wkwdask.storage.wkw import file_path
from wkwdask.storage.wkw_listing import QUARANTINE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.mag import Vec3
    from wkwdask.storage.wkw_check import WkwCheck


def mend_file(check: WkwCheck, shard: Vec3, header: WkwHeader | None, why: str, *, salvage: bool) -> tuple[int, int]:
    """Write a file anew from its blocks that can be decoded; it is replaced when the new one is complete.

    Parameters
    ----------
    check : WkwCheck
        The mag.
    shard : tuple of 3 int
        Index of the file along x, y, z.
    header : WkwHeader, optional
        To be used in place of the file's own.
    why : str
        What is wrong with it.
    salvage : bool
        Broken blocks become zeros, and the old file is set aside. Else a broken block is an error.

    Returns
    -------
    nbytes, mtime_ns : int
        Size and time of the new file.

    Raises
    ------
    CorruptError
        A block is broken; nothing was changed.
    """
    path = os.path.realpath(file_path(check.folder, shard))
    sound = check.sound_blocks(shard, header)
    if sound.header is None or not sound.num_sound:
        raise CorruptError(f"{path}: no block of it can be decoded")
    if sound.num_sound < len(sound.bounds) and not salvage:
        raise CorruptError(f"{path}: {len(sound.bounds) - sound.num_sound} of its {len(sound.bounds)} blocks are broken")
    new = sound.header.for_data_file()
    zero = zero_encoding(new.block_nbytes, new.block_type, DEFAULT_LEVEL)
    output = Pieces(lambda: NewFile(path), new.smallest_data_offset)
    sizes = np.where(sound.bounds[:, 1] > 0, sound.bounds[:, 1] - sound.bounds[:, 0], zero.size)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, nbytes, count in _stretches(sound.bounds):
            if start:
                output.copy(fd, start, nbytes, path)
            else:
                output.repeat(zero, count)
        file = output.close()
        file.write(format_file_head(new, sizes), 0)
        if salvage:
            set_aside(path, check.folder, shard, f"{why}\n{len(sizes) - sound.num_sound} of its {len(sizes)} blocks became zeros.", keep=True)
    except BaseException:
        output.discard()
        raise
    finally:
        os.close(fd)
    file.publish()
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _stretches(bounds: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Iterable[tuple[int, int, int]]:
    """Join blocks that are consecutive in the file: first byte (0 for broken blocks), bytes, number of blocks."""
    continues = (bounds[1:, 0] == bounds[:-1, 1]) & ((bounds[1:, 1] > 0) == (bounds[:-1, 1] > 0))
    starts = np.concatenate([[0], np.flatnonzero(~continues) + 1, [len(bounds)]]).tolist()
    for first, end in itertools.pairwise(starts):
        start = int(bounds[first, 0])
        yield start, int(bounds[end - 1, 1]) - start, end - first


def set_aside(path: str, mag_folder: str, shard: Vec3 | None, why: str, *, keep: bool = False) -> str:
    """Move what is broken into the quarantine beside its mag, with a text that says why.

    Parameters
    ----------
    path : str
        The file, folder or link.
    mag_folder : str
        The mag that it is in.
    shard : tuple of 3 int, optional
        Index of the file, where it is a data file.
    why : str
        What is wrong with it.
    keep : bool
        Leave it in its place too, since it is just about to be replaced.

    Returns
    -------
    str
        Where it is now.
    """
    parent, mag = os.path.split(mag_folder)
    inside = os.path.basename(path) if shard is None else file_path("", shard).lstrip("/")
    place = free_place(f"{parent}/{QUARANTINE_NAME}/{mag}/{inside}")
    os.makedirs(os.path.dirname(place), exist_ok=True)
    publish_bytes(f"{place}.txt", f"{path}\n{why}\n".encode())
    if not keep:
        shutil.move(path, place)
        return place
    try:
        os.link(path, place)
    except OSError:  # another disk, or no hard links: a copy
        shutil.copy2(path, place)
    return place


def free_place(path: str) -> str:
    """Give a path that is not taken."""
    number, place = 0, path
    while os.path.lexists(place):
        number += 1
        place = f"{path}.{number}"
    return place


def patch_record(folder: str, files: dict[Vec3, tuple[int, ...]]) -> None:
    """Take note of files that a repair changed, where the mag keeps a record: size (0 for one that is gone), time, and digest of sources that changed."""
    rows = read_record(folder)
    if rows is None or not files:
        return
    changed = rows.copy()
    for row in changed:
        state = files.get((int(row[0]), int(row[1]), int(row[2])))
        if state is not None:
            row[3 : 3 + len(state)] = state
    write_record(folder, changed.reshape(-1, RECORD_COLUMNS))
