"""Mending one data file: all blocks that can be decoded are kept byte for byte, behind a new header and jump table. And setting files aside."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.formats.leftovers import set_aside
from wkwdask.formats.wkw.file import format_file_head
from wkwdask.formats.wkw.folder import file_path
from wkwdask.formats.wkw.options import DEFAULT_LEVEL
from wkwdask.kernels.blocks.batch import zero_encoding
from wkwdask.model.pieces import Pieces
from wkwdask.store import files
from wkwdask.store.new_files import NewFile
from wkwdask.store.records import RECORD_COLUMNS, read_record, write_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from wkwdask.formats.wkw.file_check import SoundBlocks, WkwCheck
    from wkwdask.formats.wkw.header import WkwHeader
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.store import NewFile as WrittenFile


def mend_file(check: WkwCheck, shard: Vec3, header: WkwHeader | None, why: str, *, salvage: bool, spare: WkwCheck | None = None) -> tuple[int, int]:
    """Write a file anew from its blocks that can be decoded; it is replaced when the new one is complete."""
    path = files.realpath(file_path(check.folder, shard))
    sound = check.sound_blocks(shard, header)
    num_blocks = len(sound.bounds)
    if sound.header is None or not sound.num_sound:
        raise CorruptError(f"{path}: no block of it can be decoded")
    if sound.num_sound < num_blocks and not salvage:
        raise CorruptError(f"{path}: {num_blocks - sound.num_sound} of its {num_blocks} blocks are broken")
    source, bounds = _with_spare(sound, spare, shard)
    paths = (path, "" if spare is None else file_path(spare.folder, shard))
    file = _write_blocks(path, sound.header.for_data_file(), source, bounds, paths)
    try:
        if salvage:
            lost = int((source == _NOWHERE).sum())
            text = f"{why}\n{num_blocks - sound.num_sound} of its {num_blocks} blocks were broken, {lost} of them became zeros."
            set_aside(path, check.folder, file_path("", shard).lstrip("/"), text, keep=True)
    except BaseException:
        file.discard()
        raise
    file.publish()
    status = files.stat(path)
    return status.st_size, status.st_mtime_ns


def _write_blocks(path: str, header: WkwHeader, source: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64], paths: tuple[str, str]) -> WrittenFile:
    """Write the blocks of a new file, which is still to be published: from one of two files each, or zeros."""
    zero = zero_encoding(header.block_nbytes, header.block_type, DEFAULT_LEVEL)
    output = Pieces(lambda: NewFile(path), header.smallest_data_offset)
    with ExitStack() as opened:
        opened.callback(output.discard)
        sources: dict[int, files.OpenFile] = {}
        for where, start, nbytes, count in _stretches(source, bounds):
            if where == _NOWHERE:
                output.repeat(zero, count)
                continue
            if where not in sources:
                sources[where] = files.open_file(paths[where])
            output.copy(sources[where], start, nbytes)
        file = output.close()
        file.write(format_file_head(header, np.where(source == _NOWHERE, zero.size, bounds[:, 1] - bounds[:, 0])), 0)
        opened.pop_all()
    return file


_OWN, _SPARE, _NOWHERE = range(3)  # where a block comes from


def _with_spare(sound: SoundBlocks, spare: WkwCheck | None, shard: Vec3) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Choose where each block comes from: the file itself, the spare one, or nowhere; and its place there."""
    source, bounds = np.where(sound.bounds[:, 1] > 0, _OWN, _NOWHERE), sound.bounds.copy()
    if spare is not None and files.exists(file_path(spare.folder, shard)):
        other = spare.sound_blocks(shard)
        if other.header is not None and sound.header is not None and other.header.is_compressed == sound.header.is_compressed:
            fills = (source == _NOWHERE) & (other.bounds[:, 1] > 0)
            source[fills], bounds[fills] = _SPARE, other.bounds[fills]
    return source, bounds


def _stretches(source: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
    """Join blocks that are consecutive in one file: where they come from, first byte, bytes, number of blocks."""
    continues = (source[1:] == source[:-1]) & (bounds[1:, 0] == bounds[:-1, 1])
    starts = np.concatenate([[0], np.flatnonzero(~continues) + 1, [len(bounds)]]).tolist()
    for first, end in pairwise(starts):
        start = int(bounds[first, 0])
        yield int(source[first]), start, int(bounds[end - 1, 1]) - start, end - first


def recorded_states(folder: str, shards: Iterable[Vec3]) -> dict[Vec3, tuple[int, ...]]:
    """Read size and time that a mag's record has of files, where it keeps one."""
    rows = read_record(folder)
    wanted = set(shards)
    return {} if rows is None else {(x, y, z): (nbytes, mtime_ns) for x, y, z, nbytes, mtime_ns, _ in rows.tolist() if (x, y, z) in wanted}


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
