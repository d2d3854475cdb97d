"""The job that writes a volume to files of another format: cells of a grid, none waits for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.states import digest
from wkwdask.runs.job import Result, Task, voxel_nbytes
from wkwdask.runs.parts import source_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wkwdask.formats.pictures.exported import Output
    from wkwdask.model.states import States
    from wkwdask.model.volume import Volume


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """Write one cell."""

    source: Volume
    """What is read."""
    output: Output
    """What is written."""
    box: BoundingBox
    """The cell, without what lies outside the box."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"export of {self.box} of {self.source.name}", "export {},{},{}".format(*self.box.topleft), ExportSpec.run, self)

    def states(self) -> States:
        """Look at the files that are read."""
        return self.source.shard_states(self.box)

    def run(self) -> Result:
        """Write it."""
        states = self.states()  # before the reading: a file that changes meanwhile is seen as changed later
        self.output.write(self.source, self.box)
        return Result((), digest(states), nbytes_in=voxel_nbytes(self.source, self.box))


class ExportJob:
    """A volume that is written to files of another format."""

    def __init__(self, source: Volume, output: Output, box: BoundingBox) -> None:
        self._source, self._output, self._box = source, output, box
        self.num_tasks = sum(1 for _ in self._boxes())

    def _boxes(self) -> Iterator[BoundingBox]:
        box, step, corner = self._box, self._output.cell_shape, self._output.corner
        moved = _moved(box, [-c for c in corner])
        for index in cells(moved, step):
            yield _moved(cell_box(index, step, box).intersection(moved), corner)

    def tasks(self) -> Iterator[Task]:
        """Give all cells."""
        return (ExportSpec(self._source, self._output, box).task() for box in self._boxes())

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take note of nothing: what is written is in its place."""
        del task, result
        return ()

    def holds(self, task: Task, result: Result, known: Callable[[str], Result | None]) -> bool:
        """Tell that a cell of an earlier start is there."""
        del known
        if isinstance(task.spec, ExportSpec):
            states = task.spec.states()
            if digest(states) != result.sources:
                raise source_changed(task, states, self._source)
        return True


def _moved(box: BoundingBox, by: Sequence[int]) -> BoundingBox:
    x, y, z = (t + n for t, n in zip(box.topleft, by, strict=True))
    return BoundingBox((x, y, z), box.size, box.mag)
