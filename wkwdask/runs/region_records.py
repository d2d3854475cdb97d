"""File records of regions whose job was interrupted and does not continue."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import WkwDaskError
from wkwdask.formats.opening import open_stored
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.vectors import minus, times
from wkwdask.model.states import FILE_RECORD_COLUMNS, FILE_RECORD_NAME
from wkwdask.model.volume import relative_to
from wkwdask.store import by_path
from wkwdask.store.paths import is_bucket
from wkwdask.store.records import merge_file_record, read_file_record

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Vec3
    from wkwdask.store.locks import ShardBox


def record_region(folder: str, region: ShardBox) -> None:
    """Record the present files of some shards: a job that is given up has replaced some of them,
    and has not recorded that."""
    with contextlib.suppress(WkwDaskError, OSError):  # verify names what is wrong with the level
        if not is_bucket(folder):
            by_path.remove_temporaries(folder, FILE_RECORD_NAME)
        record = read_file_record(folder)
        if record is None:
            return
        _, opened = open_stored(folder)
        array = relative_to(opened, opened.origin)
        low, high = (times(corner, array.grid.unit) for corner in (region.low, region.high))
        stored = array.files.shard_states(BoundingBox(low, minus(high, low), array.box.mag))
        found, recorded = _states_in(region, stored), _states_in(region, record)
        rows = [
            (*shard, *found.get(shard, (0, 0)), 0)
            for shard in found.keys() | recorded.keys()
            if found.get(shard, (0, 0)) != recorded.get(shard, (0, 0))
        ]
        merge_file_record(folder, np.array(rows, np.int64).reshape(-1, FILE_RECORD_COLUMNS))


def _states_in(region: ShardBox, rows: np.ndarray) -> dict[Vec3, tuple[int, int]]:
    """Return size and time of the files of the shards in a box."""
    inside = np.all((rows[:, :3] >= region.low) & (rows[:, :3] < region.high), axis=1)
    return {(x, y, z): (nbytes, time) for x, y, z, nbytes, time in rows[inside, :5].tolist()}
