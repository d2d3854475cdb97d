"""Surveys: jobs that gather facts about a volume. Each task accumulates the facts of its bricks,
and the driver merges those of all tasks."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from wkwdask.errors import MissingError
from wkwdask.formats.opening import find
from wkwdask.formats.webknossos.dataset import dataset_of, listed_layer
from wkwdask.model.image import ResolvedUrl
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import Result, Task
from wkwdask.runs.retries import NO_RESULT, FailurePolicy
from wkwdask.streams.converted import countable

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from wkwdask.formats.format import Url
    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.volume import Volume
    from wkwdask.plans.apply import BrickPlan
    from wkwdask.plans.cells import CellMap


@dataclass(frozen=True)
class OpenedMag:
    """Opened mag of a layer."""

    layer: Image
    volume: Volume
    """Volume with values that can be counted."""

    @property
    def voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Edge lengths of a mag-1 voxel [nm], None if unknown."""
        return self.layer.voxel_size_of(self.volume)


def open_layer(
    url: Url,
    layer: str | None,
    mag: Mag | str | None,
    index: Mapping[str, int] | None,
    category: str,
) -> OpenedMag:
    """Open a mag; ``category`` restricts the choice of the layer if none is named."""
    resolved = find(url, index=index)
    if layer is None:
        matching = tuple(image for image in resolved.layers if image.category == category)
        resolved = replace(resolved, layers=matching or resolved.layers)
    return _opened(*resolved.open(layer, mag))


def _opened(layer: Image, volume: Volume) -> OpenedMag:
    return OpenedMag(layer, countable(volume))


def open_companion(
    first: OpenedMag, color: Url, mag: Mag | str | None, index: Mapping[str, int] | None
) -> OpenedMag:
    """Open a layer that is read together with another one, in the finest mag that is not finer than
    that of the first."""
    dataset = dataset_of(first.layer) if first.layer.is_layer else None
    resolved = None
    if dataset is not None and dataset.datasource is not None:
        folder, named = str(dataset.dataset_folder), dataset.datasource.layer(os.fspath(color))
        if named is not None:
            resolved = ResolvedUrl(folder, (listed_layer(folder, dataset.datasource, named),))
    if resolved is None:
        try:
            resolved = find(color, index=index)
        except MissingError:
            if dataset is None or dataset.datasource is None or "/" in os.fspath(color):
                raise
            names = ", ".join(layer.name for layer in dataset.datasource.layers)
            raise MissingError(
                f"{dataset.dataset_folder}: no layer {os.fspath(color)!r}; there are {names}"
            ) from None
    layer = resolved.choose(None)
    if mag is not None or resolved.mag is not None:
        return _opened(*resolved.open(None, mag))
    coarse: list[Volume] = []
    for candidate in layer.mags:
        if not all(
            a <= b for a, b in zip(first.volume.box.mag.factors, candidate.factors, strict=True)
        ):
            continue
        try:
            volume = layer.volume(candidate)
        except MissingError:
            continue
        if layer.is_written(volume):
            return _opened(layer, volume)
        coarse.append(volume)
    if coarse and not layer.needs_files:  # all its voxels are background
        return _opened(layer, coarse[0])
    raise MissingError(
        f"{layer.folder}: no mag that is as coarse as mag {first.volume.box.mag} of layer "
        f"{first.layer.name}; choose a finer mag of that layer"
    )


_MOST_FAILURES = 100


class Accumulator(Protocol):
    """Facts gathered so far. Their size must not grow with the number of voxels."""

    def add_brick(self, box: BoundingBox) -> None:
        """Read a brick [voxels of the mag] and add its facts."""

    def result(self) -> Any:
        """Return the facts, picklable, for :meth:`merge` of another accumulator."""

    def merge(self, facts: Any) -> None:
        """Add the facts of another accumulator."""


class Survey(Protocol):
    """Facts to gather. Picklable: tasks carry it."""

    @property
    def name(self) -> str:
        """Name of the survey in errors and progress."""

    @property
    def plan(self) -> BrickPlan:
        """Regions and bricks. They do not depend on the number of workers, so that float sums are
        reproducible."""

    @property
    def is_exact(self) -> bool:
        """Whether results may be merged in any order."""

    def occupied(self) -> CellMap:
        """Return the map of regions to read, shape (x, y, z)."""

    def start(self) -> Accumulator:
        """Return an empty accumulator."""


@dataclass(frozen=True, slots=True)
class SurveySpec:
    """Task that surveys one region."""

    survey: Survey
    region: Vec3
    number: int
    """Position of the region in the order of merging."""

    def task(self) -> Task:
        return Task(
            f"{self.survey.plan.region_box(self.region)} of {self.survey.name}",
            "survey {},{},{}".format(*self.region),
            SurveySpec.run,
            self,
        )

    def run(self) -> Result:
        """Add all bricks of the region; the value of the result is that of the accumulator."""
        accumulator, plan = self.survey.start(), self.survey.plan
        for brick in plan.bricks(self.region):
            accumulator.add_brick(plan.brick_box(brick))
        return Result((), value=accumulator.result())


class SurveyJob:
    """Job of one survey. If the order of merging matters, each result waits for those of the
    regions before it."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._occupied = survey.occupied()
        self.num_tasks = int(self._occupied.sum())
        self.accumulator = survey.start()
        self._waiting: dict[int, Any] = {}
        self._next = 0

    def tasks(self) -> Iterator[Task]:
        return (
            SurveySpec(self._survey, region, number).task()
            for number, region in enumerate(self._survey.plan.regions(self._occupied))
        )

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        if self._survey.is_exact:
            self.accumulator.merge(result.value)
        elif isinstance(task.spec, SurveySpec):
            self._waiting[task.spec.number] = result.value
        while self._next in self._waiting:
            self.accumulator.merge(self._waiting.pop(self._next))
            self._next += 1
        return ()


class SurveyWork(Work[Any]):
    """Survey of a volume; regions that cannot be read are listed."""

    def __init__(self, survey: Survey, title: str) -> None:
        self._survey, self._title = survey, title

    def phases(self) -> Generator[Phase, str, Any]:
        job = SurveyJob(self._survey)
        yield Phase(
            job, self._title, FailurePolicy(_MOST_FAILURES, lists_always=True, ending=NO_RESULT)
        )
        return job.accumulator.result()
