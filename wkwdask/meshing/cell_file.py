"""Scratch file of one cell in one level of detail: the surfaces of its labels, for the next level,
and their encoded fragments.

Labels are stored in groups, so that a task that writes the files of some labels reads the parts of
its group alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.ids.arrays_file import ArraysFile, pieces
from wkwdask.meshing.surface import Surface
from wkwdask.model.writing.file_buffer import FileBuffer
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from wkwdask.array_types import AnyArray
    from wkwdask.geometry.mag import Vec3


@dataclass(frozen=True, slots=True)
class Fragment:
    """Surface of one label in one cell."""

    label: int
    surface: Surface
    data: bytes
    """Encoded surface."""


def group_of(label: int, num_groups: int) -> int:
    return label % num_groups


def cell_name(lod: int, cell: Vec3) -> str:
    return "lod{} {},{},{}".format(lod, *cell)


def write_cell(
    folder: str,
    name: str,
    groups: Iterable[tuple[int, Sequence[Fragment]]],
    sizes: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]] | None,
    record: dict[str, Any],
) -> None:
    """Write the file of a cell, one group of labels at a time; ``sizes`` are labels and their
    voxels in it. The record may change until all groups are written."""
    with store_at(folder).new_file(name) as file:
        buffer = FileBuffer(lambda: file)
        for piece in pieces(_arrays(groups, sizes, record), record):
            buffer.append(np.frombuffer(piece, np.uint8))
        buffer.close()


def _arrays(
    groups: Iterable[tuple[int, Sequence[Fragment]]],
    sizes: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]] | None,
    record: dict[str, Any],
) -> Iterator[tuple[str, AnyArray]]:
    labels, numbers = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    record.update(faces=0, nbytes=0)
    for group, members in groups:
        if not members:
            continue
        surfaces = [each.surface for each in members]
        counts = [
            [len(surface.vertices), len(surface.faces), len(each.data)]
            for surface, each in zip(surfaces, members, strict=True)
        ]
        _, num_faces, nbytes = np.sum(counts, axis=0).tolist()
        record.update(faces=record["faces"] + num_faces, nbytes=record["nbytes"] + nbytes)
        labels.append(np.array([each.label for each in members], np.uint64))
        numbers.append(np.full(len(members), group, np.uint64))
        yield f"counts {group}", np.array(counts, np.int64)
        yield f"vertices {group}", np.concatenate([surface.vertices for surface in surfaces])
        yield f"faces {group}", np.concatenate([surface.faces for surface in surfaces])
        yield f"data {group}", np.frombuffer(b"".join(each.data for each in members), np.uint8)
    yield "labels", np.concatenate(labels)
    yield "groups", np.concatenate(numbers)
    if sizes is not None:
        yield from zip(("voxel labels", "voxels"), sizes, strict=True)


class CellFile:
    """Scratch file of one cell, whose arrays are read when they are needed."""

    def __init__(self, folder: str, lod: int, cell: Vec3) -> None:
        self._file = ArraysFile(folder, cell_name(lod, cell))
        self.record = self._file.record
        self.labels: npt.NDArray[np.uint64] = self._file.read("labels")
        self._groups: npt.NDArray[np.uint64] = self._file.read("groups")

    def check(self) -> None:
        """Read everything; raises CorruptError for damage."""
        self._file.check()

    def groups(self) -> list[int]:
        return [int(group) for group in np.unique(self._groups)]

    def voxels(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return labels and their voxels in a cell of the finest level."""
        return self._file.read("voxel labels"), self._file.read("voxels")

    def surfaces(self, group: int) -> Iterator[tuple[int, Surface]]:
        """Yield the labels of a group with their surfaces."""
        if f"counts {group}" not in self._file:
            return
        vertices, faces = (self._file.read(f"{name} {group}") for name in ("vertices", "faces"))
        ends = np.cumsum(self._counts(group)[:, :2], axis=0)
        starts = np.concatenate([np.zeros((1, 2), np.int64), ends[:-1]])
        for label, (v, f), (v_end, f_end) in zip(
            self._members(group), starts.tolist(), ends.tolist(), strict=True
        ):
            yield label, Surface(vertices[v:v_end], faces[f:f_end])

    def fragments(self, group: int) -> Iterator[tuple[int, bytes]]:
        """Yield the labels of a group with their encoded fragments."""
        if f"counts {group}" not in self._file:
            return
        data, start = self._file.read(f"data {group}").tobytes(), 0
        for label, size in zip(
            self._members(group), self._counts(group)[:, 2].tolist(), strict=True
        ):
            yield label, data[start : start + size]
            start += size

    def _members(self, group: int) -> list[int]:
        members: list[int] = self.labels[self._groups == group].tolist()
        return members

    def _counts(self, group: int) -> npt.NDArray[np.int64]:
        counts: npt.NDArray[np.int64] = self._file.read(f"counts {group}")
        return counts
