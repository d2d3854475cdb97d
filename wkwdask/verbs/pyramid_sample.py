"""Timed sample of a pyramid: a few bricks are reduced and encoded, but not written."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.model.volume import voxel_nbytes
from wkwdask.streams.pyramid import PyramidStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.geometry.mag import Vec3

SAMPLED_REGIONS = 3
_FEWEST_PLACES = 6  # that a pyramid samples in all regions together
_FEWEST_BRICKS, _MOST_BRICKS = 2, 16  # that a pyramid samples in a region


@dataclass(slots=True)
class Sample:
    """Timed sample of the work of a job."""

    nbytes_in: int = 0
    """Decoded bytes that were read and timed."""
    seconds: float = 0.0
    """Time of reading, reducing and encoding these."""
    encoded_nbytes: int = 0
    """Bytes of the voxels that were encoded."""
    stored_nbytes: int = 0
    """Size of their chunks."""
    coarser: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The same two numbers of coarser mags, by their index, where whole bricks of them were
    sampled."""

    def ratio_of(self, level: int) -> float | None:
        """Return the ratio of a mag, or that of the first one."""
        encoded, stored = self.coarser.get(level, (0, 0))
        return stored / encoded if encoded else self.ratio

    @property
    def ratio(self) -> float | None:
        """Stored bytes per voxel byte, None if all sampled voxels are zero."""
        return self.stored_nbytes / self.encoded_nbytes if self.encoded_nbytes else None

    @property
    def seconds_per_byte(self) -> float:
        """Time per decoded byte that is read."""
        return self.seconds / max(1, self.nbytes_in)


def sample_pyramid(pyramid: Any) -> Sample:
    """Stream a few bricks of the first pass without writing them; the ratio is that of the first
    mag."""
    plan, targets = pyramid.passes[0], pyramid.staged.targets
    source = pyramid.source.moved(plan.source_shift)
    stream = PyramidStream(
        plan, pyramid.method, source.dtype, source.num_channels, ignore_zero=pyramid.ignore_zero
    )
    regions = list(plan.regions(source.files.occupied(plan.source_region_shape)))
    places = -(-_FEWEST_PLACES // max(1, len(regions)))  # few regions are sampled in several places
    source_bricks = [
        brick
        for region in regions[:: max(1, len(regions) // SAMPLED_REGIONS)]
        for brick in _spread_bricks(list(plan.bricks(region)), plan.source_bricks_per_brick, places)
    ]
    sample, is_first = Sample(), True  # the first brick compiles kernels and is not timed
    for source_brick in source_bricks:
        started = time.perf_counter()
        nonzero = source.read_into(
            stream.source_view(source_brick),
            stream.source_box(source_brick).topleft,
            fill_zeros=False,
        )
        encoded = [
            (
                targets[brick.level].encoder.encoded_nbytes(brick.voxels, brick.topleft),
                brick.voxels.nbytes,
                brick.level,
            )
            for brick in stream.push(source_brick, nonzero == 0)
            if brick.voxels is not None
        ]
        if not nonzero:
            continue
        if not is_first:
            sample.seconds += time.perf_counter() - started
            sample.nbytes_in += stream.source_box(source_brick).volume * voxel_nbytes(source)
        is_first = False
        for stored, nbytes, level in encoded:
            if level:
                before = sample.coarser.get(level, (0, 0))
                sample.coarser[level] = before[0] + nbytes, before[1] + stored
                continue
            sample.stored_nbytes += stored
            sample.encoded_nbytes += nbytes
    stream.close()
    return sample


def _spread_bricks(bricks: Sequence[Vec3], group: int, places: int) -> Sequence[Vec3]:
    """Return a few neighbouring source bricks from each of some places: those that make one brick
    of the first mag, within limits."""
    count = max(_FEWEST_BRICKS, min(group, _MOST_BRICKS))
    starts = (
        max(0, (2 * place + 1) * len(bricks) // places - count) // 2 // group * group
        for place in range(places)
    )
    return list(dict.fromkeys(brick for first in starts for brick in bricks[first : first + count]))
