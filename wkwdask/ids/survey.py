"""Jobs that gather facts about a volume, and the layers that they read: each task gathers what its bricks say, and the results are gathered in turn."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from wkwdask.errors import MissingError
from wkwdask.formats.opening import find
from wkwdask.formats.webknossos.dataset import listed_layer
from wkwdask.model.image import ResolvedUrl
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import Result, Task
from wkwdask.runs.retries import NO_RESULT, FailurePolicy

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from wkwdask.geometry.bounding_box import BoundingBox
    from wkwdask.geometry.mag import Mag, Vec3
    from wkwdask.model.image import Image
    from wkwdask.model.stored_array import StoredArray
    from wkwdask.plans.apply import BrickPlan
    from wkwdask.plans.cells import CellMap


@dataclass(frozen=True)
class OpenedMag:
    """One mag of a layer, opened."""

    layer: Image
    """The layer."""
    volume: StoredArray
    """Its mag."""

    @property
    def voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Edge lengths of a mag-1 voxel [nm], None where nobody says."""
        return self.layer.voxel_size_of(self.volume)


def open_layer(url: str | os.PathLike[str], layer: str | None, mag: Mag | str | None, category: str | None = None) -> OpenedMag:
    """Open the mag that a user names."""
    found = find(url)
    if layer is None and category is not None:
        fitting = tuple(one for one in found.layers if one.category == category)
        found = replace(found, layers=fitting or found.layers)
    return OpenedMag(*found.open(layer, mag))


def open_companion(first: OpenedMag, color: str | os.PathLike[str], mag: Mag | str | None) -> OpenedMag:
    """Open a layer that is read together with another one."""
    dataset = first.layer.container
    named = None if dataset is None or dataset.datasource is None else dataset.datasource.layer(os.fspath(color))
    found = find(color) if named is None else ResolvedUrl(dataset.dataset_folder, (listed_layer(dataset.dataset_folder, dataset.datasource, named),))
    layer = found.choose(None)
    if mag is not None or found.mag is not None:
        return OpenedMag(*found.open(None, mag))
    for candidate in layer.mags:
        if not all(a <= b for a, b in zip(first.volume.box.mag.factors, candidate.factors, strict=True)):
            continue
        try:
            volume = layer.volume(candidate)
        except MissingError:
            continue
        if volume.has_shards():
            return OpenedMag(layer, volume)
    raise MissingError(f"{layer.folder}: no mag that is as coarse as mag {first.volume.box.mag} of layer {first.layer.name}; choose a finer mag of that layer")


_MOST_FAILURES = 100


class Findings(Protocol):
    """What is known so far; its size depends on what is found out, never on the number of voxels."""

    def look(self, box: BoundingBox) -> None:
        """Read a brick [voxels of the mag] and take in what it says."""

    def found(self) -> Any:
        """Give what is known: picklable, and what another one can take."""

    def take(self, found: Any) -> None:
        """Take in what another one found."""


class Survey(Protocol):
    """What is to be found out; picklable."""

    @property
    def name(self) -> str:
        """What an error or a progress line calls it."""

    @property
    def plan(self) -> BrickPlan:
        """Regions and bricks. They do not depend on the number of workers, so that neither does a sum of floats."""

    @property
    def is_exact(self) -> bool:
        """Whether the order in which findings are taken makes no difference."""

    def occupied(self) -> CellMap:
        """Tell which regions have to be looked at, shape (x, y, z)."""

    def start(self) -> Findings:
        """Give findings that know nothing yet."""


@dataclass(frozen=True, slots=True)
class SurveySpec:
    """Look at one region."""

    survey: Survey
    """What is to be found out."""
    region: Vec3
    """Which region."""
    number: int
    """Its place in the order of all."""

    def task(self) -> Task:
        """Give the task."""
        return Task(f"{self.survey.plan.region_box(self.region)} of {self.survey.name}", "survey {},{},{}".format(*self.region), SurveySpec.run, self)

    def run(self) -> Result:
        """Look at all bricks of the region; the value of the result is what was found."""
        findings, plan = self.survey.start(), self.survey.plan
        for brick in plan.bricks(self.region):
            findings.look(plan.brick_box(brick))
        return Result((), value=findings.found())


class SurveyJob:
    """One survey. Where the order counts, findings wait for those of the regions before them."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._occupied = survey.occupied()
        self.num_tasks = int(self._occupied.sum())
        self.findings = survey.start()
        self._waiting: dict[int, Any] = {}
        self._next = 0

    def tasks(self) -> Iterator[Task]:
        """Give the regions that have to be looked at."""
        return (SurveySpec(self._survey, region, number).task() for number, region in enumerate(self._survey.plan.regions(self._occupied)))

    def receive(self, task: Task, result: Result) -> Iterable[Task]:
        """Take what a task found."""
        if self._survey.is_exact:
            self.findings.take(result.value)
        elif isinstance(task.spec, SurveySpec):
            self._waiting[task.spec.number] = result.value
        while self._next in self._waiting:
            self.findings.take(self._waiting.pop(self._next))
            self._next += 1
        return ()


class SurveyWork(Work[Any]):
    """Finds something out about a volume; regions that cannot be read are listed."""

    def __init__(self, survey: Survey, title: str) -> None:
        self._survey, self._title = survey, title

    def phases(self) -> Generator[Phase, str, Any]:
        """Look at all regions; gives what the findings say in the end."""
        job = SurveyJob(self._survey)
        yield Phase(job, self._title, FailurePolicy(_MOST_FAILURES, lists_always=True, ending=NO_RESULT))
        return job.findings.found()
