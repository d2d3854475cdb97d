"""Tables of the labels of a level of detail: those that continue in the next one, and those that
are left out of it. They are made and read in bounded memory for any number of labels.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wkwdask.ids.sorted_runs import SortedRuns, map_column
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    Ids = npt.NDArray[np.uint64]
    Counts = npt.NDArray[np.int64]

_ROWS = 1 << 21  # sorted at once
MOST_NAMED = 10


class LabelRows(NamedTuple):
    """Labels with numbers that are summed, as columns."""

    labels: Ids
    surfaces: Counts
    """Cells in which a label has a surface."""
    voxels: Counts
    """Voxels in the finest level; in coarser ones, cells that would have too many faces."""


@dataclass(slots=True)
class SomeLabels:
    """Number of some labels, and the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, labels: Ids) -> None:
        self.count += len(labels)
        self.first += labels[: MOST_NAMED - len(self.first)].tolist()

    def extend(self, others: SomeLabels) -> None:
        self.count += others.count
        self.first += others.first[: MOST_NAMED - len(self.first)]


@dataclass(slots=True)
class LevelLabels:
    """Labels of a level."""

    num_continued: int = 0
    num_meshed: int = 0
    """Labels that have a surface and are not too small."""
    left_out: SomeLabels = field(default_factory=SomeLabels)
    """Labels that are too small, or in a coarser level have too many faces."""
    without_surface: SomeLabels = field(default_factory=SomeLabels)
    missing: SomeLabels = field(default_factory=SomeLabels)
    """Labels that were asked for and not found."""


@dataclass(frozen=True, slots=True)
class LabelTables:
    """Tables in a folder of scratch files, each a column of ascending labels."""

    folder: str

    def write(
        self, lod: int, rows: Iterable[LabelRows], min_voxels: int = 0, ids: Ids | None = None
    ) -> LevelLabels:
        """Write the tables of a level from the labels of its cells: those in several cells
        continue, and those with too few voxels or too many faces are left out. ``ids`` were asked
        for."""
        found, wanted = LevelLabels(), np.zeros(0, np.uint64) if ids is None else ids
        is_found = np.zeros(len(wanted), np.bool_)
        with (
            SortedRuns(self.folder, [np.uint64, np.int64, np.int64]) as runs,
            self._new_column(_continued(lod)) as continued,
            self._new_column(_dropped(lod)) as dropped,
        ):
            for part in _gathered(rows):
                runs.add(*part)
            for columns in runs.merged(_ROWS):
                labels, surfaces, voxels = _summed(LabelRows(*columns))
                if not len(labels):
                    continue
                is_out = voxels > 0 if lod else voxels < min_voxels
                _append(continued, labels[(surfaces > 1) & ~is_out])
                _append(dropped, labels[is_out])
                found.num_continued += int(((surfaces > 1) & ~is_out).sum())
                found.num_meshed += int(((surfaces > 0) & ~is_out).sum())
                found.left_out.add(labels[is_out])
                found.without_surface.add(labels[(surfaces == 0) & ~is_out])
                start, end = np.searchsorted(wanted, labels[[0, -1]])
                is_found[start : end + 1] |= is_in(wanted[start : end + 1], labels)
        found.missing.add(wanted[~is_found])
        return found

    def continued(self, lod: int) -> Ids:
        """Map the labels that continue after a level into memory."""
        return self._column(_continued(lod))

    def dropped(self, lod: int) -> Ids:
        """Map the labels that are left out of a level into memory."""
        return self._column(_dropped(lod))

    def _column(self, name: str) -> Ids:
        store = store_at(self.folder)
        if store.is_remote:  # not mapped, but read in one request
            return np.frombuffer(store.open_stream(name).read(), np.uint64)
        count = store.status(name).st_size // 8
        return map_column(store.path_of(name), np.dtype(np.uint64), 0, count)

    @contextmanager
    def _new_column(self, name: str) -> Iterator[FileBuffer]:
        with store_at(self.folder).new_file(name) as file:
            buffer = FileBuffer(lambda: file)
            yield buffer
            buffer.close()


def _continued(lod: int) -> str:
    return f"continued{lod}"


def _dropped(lod: int) -> str:
    return f"dropped{lod}"


def _append(column: FileBuffer, labels: Ids) -> None:
    column.append(np.ascontiguousarray(labels).view(np.uint8))


def _gathered(rows: Iterable[LabelRows]) -> Iterator[LabelRows]:
    """Yield sorted sums of many rows at once."""
    parts, count = [], 0
    for part in rows:
        parts.append(part)
        count += len(part.labels)
        if count >= _ROWS:
            yield _summed(_concatenated(parts))
            parts, count = [], 0
    if count:
        yield _summed(_concatenated(parts))


def _concatenated(parts: list[LabelRows]) -> LabelRows:
    return LabelRows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _summed(rows: LabelRows) -> LabelRows:
    """Return each label once, ascending."""
    order = np.argsort(rows.labels, kind="stable")
    labels = rows.labels[order]
    starts = np.flatnonzero(np.append(True, labels[1:] != labels[:-1])[: len(labels)])
    if not len(labels):
        return rows
    sums = [np.add.reduceat(column[order], starts) for column in (rows.surfaces, rows.voxels)]
    return LabelRows(labels[starts], *sums)


def is_in(labels: Ids, ascending: Ids) -> npt.NDArray[np.bool_]:
    """Return which labels are among ascending ones, and read few of these."""
    if not len(ascending):
        return np.zeros(len(labels), np.bool_)
    rows = np.searchsorted(ascending, labels)
    return np.asarray(ascending[np.minimum(rows, len(ascending) - 1)] == labels)
