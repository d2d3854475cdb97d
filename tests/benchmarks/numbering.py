"""Peak anonymous memory of segmentations of large volumes: of the process that numbers the objects,
and of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .client import Worker
from .measure import MB, Outcome, Sample
from .memory import Sampler
from .table import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from .data import Data

_BLOCKS = 20  # along each axis; blocks of 256^3 in 5120^3
_NBYTES_PER_NODE = 40
_OF_PROCESS_MB = 300
_WORKER_MB = 1000


@dataclass(frozen=True)
class Numbering:
    """Objects of 5120^3 voxels, as many blocks as a real volume has."""

    name: str
    """What ``--rows`` selects."""
    data: Data
    """The folder for scratch files."""
    labels: int
    """Labels of each of the 8000 blocks."""
    guarded: bool = False
    """Whether pairs of labels are tried in the order of their scores, and some refused."""

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Measure once.

        Returns
        -------
        list of Row
            One.
        """
        nodes = self.labels * _BLOCKS**3
        say(f"{self.name}: {nodes:,} labels")
        options = {"blocks": _BLOCKS, "labels": self.labels, "guarded": self.guarded}
        outcome, sampler = _measured(self, "ours_objects.Numbering", options)
        work = f"number the objects of {nodes:,} labels in {_BLOCKS**3:,} blocks" + (
            ", with guards" if self.guarded else ""
        )
        if outcome.problem:
            return [Row(work, outcome)]
        grown = (sampler.peak - sampler.first) / nodes
        note = f"peak {sampler.peak / MB:.0f} MB anonymous, {grown:.0f} bytes per label"
        met = sampler.peak / MB < nodes * _NBYTES_PER_NODE / MB + _OF_PROCESS_MB
        return [Row(work, outcome, None, f"< {_NBYTES_PER_NODE} bytes per label", met, note)]


@dataclass(frozen=True)
class SparseVolume:
    """A volume of 5120^3 voxels with few stored files."""

    name: str
    """What ``--rows`` selects."""
    data: Data
    """The folder for scratch files."""
    verb: str
    """Function that segments it."""
    blocks: int = _BLOCKS
    """Files along each edge."""

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Measure once.

        Returns
        -------
        list of Row
            One.
        """
        say(self.name)
        options = {"blocks": self.blocks, "verb": self.verb}
        outcome, sampler = _measured(self, "ours_objects.Sparse", options)
        work = f"{self.verb} of a sparse volume of {256 * self.blocks}^3 (uint8)"
        if outcome.problem:
            return [Row(work, outcome)]
        note = f"peak {sampler.peak / MB:.0f} MB anonymous, {outcome.digests[0]} objects"
        met = sampler.peak / MB < _WORKER_MB
        return [Row(work, outcome, None, f"< {_WORKER_MB} MB", met, note)]


def _measured(
    case: Numbering | SparseVolume, work: str, options: dict[str, Any]
) -> tuple[Outcome, Sampler]:
    """Run a work once in a process whose memory is watched."""
    outcome = Outcome("wkwdask")
    with (
        Worker(work, {"folder": case.data.fresh(case.name), **options}) as worker,
        Sampler(worker.pid) as sampler,
    ):
        answer = worker.setup if "error" in worker.setup else worker.ask("measure")
        if "error" in answer:
            outcome.problem = "FAILED: " + answer["error"].strip().splitlines()[-1]
        else:
            outcome.nbytes = worker.setup["nbytes"]
            outcome.samples.append(Sample(**answer))
            outcome.digests = worker.ask("digests").get("digests", [])
    return outcome, sampler
