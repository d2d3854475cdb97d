"""Peak anonymous memory of the process that numbers the objects of a segmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class Numbering:
    """Objects of 5120^3 voxels, as many blocks as a real volume has."""

    name: str
    """What ``--rows`` selects."""
    data: Data
    """The folder for scratch files."""
    labels: int
    """Labels of each of the 8000 blocks."""

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Measure once.

        Returns
        -------
        list of Row
            One.
        """
        nodes = self.labels * _BLOCKS**3
        say(f"{self.name}: {nodes:,} labels")
        outcome = Outcome("wkwdask")
        options = {
            "folder": self.data.fresh(self.name),
            "blocks": _BLOCKS,
            "labels": self.labels,
        }
        limit = nodes * _NBYTES_PER_NODE / MB
        work = f"number the objects of {nodes:,} labels in {_BLOCKS**3:,} blocks"
        with Worker("ours_objects.Numbering", options) as worker, Sampler(worker.pid) as sampler:
            answer = worker.setup if "error" in worker.setup else worker.ask("measure")
        if "error" in answer:
            outcome.problem = "FAILED: " + answer["error"].strip().splitlines()[-1]
            return [Row(work, outcome)]
        outcome.nbytes = worker.setup["nbytes"]
        outcome.samples.append(Sample(**answer))
        grown = (sampler.peak - sampler.first) / MB
        note = (
            f"peak {sampler.peak / MB:.0f} MB anonymous, {grown * MB / nodes:.0f} bytes per label"
        )
        met = sampler.peak / MB < limit + _OF_PROCESS_MB
        return [Row(work, outcome, None, f"< {_NBYTES_PER_NODE} bytes per label", met, note)]
