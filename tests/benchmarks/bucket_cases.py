"""Rows that write to a bucket of S3 behind a proxy with 20 ms of latency: requests, seconds and CPU
seconds beside tensorstore, cloud-volume and igneous."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from support.buckets import s3_bucket
from support.proxy import proxy

from .measure import Outcome
from .race import NOT_INSTALLED, Race, Unit, run_units
from .remote_cases import LATENCY_SECONDS, traffic
from .table import VOXELS_DIFFER, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .data import Data

_KINDS = {"precomputed": "precomputed, shards of 4^3 chunks", "zarr": "Zarr, shards of 4^3 chunks"}
_WORKS = {"save": "write EM", "pyramid": "four coarser mags", "convert": "WKW, blocks copied"}
_CPU_TARGET = 1.2


@dataclass(frozen=True)
class BucketRace(Race):
    """A race of units that write to a bucket, whose server each gets as ``server``."""

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Measure all units in turns, and count what passes through the proxy."""
        say(self.name)
        for volume in self.volumes:
            volume.make()
        with ExitStack() as stack:
            try:
                bucket = stack.enter_context(s3_bucket())
            except pytest.skip.Exception:
                return [Row(self.work, Outcome("moto", problem=NOT_INSTALLED))]
            far = stack.enter_context(proxy(bucket.server, LATENCY_SECONDS))
            units = [
                replace(unit, options=unit.options | {"server": far.url}) for unit in self.units
            ]
            outcomes = run_units(units, repeat, far)
        return [
            row for conclusion in self.conclusions for row in conclusion.rows(self.work, outcomes)
        ]


@dataclass(frozen=True)
class NoSlower:
    """The first tool takes no more seconds than another, and little more CPU time."""

    against: int
    """Place among the units."""
    differs: str = ""
    """Why the voxels of the other tool differ."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        ours, peer = outcomes[0], outcomes[self.against]
        row = Row(work, ours, peer, f"no more seconds, CPU <= {_CPU_TARGET:g}x")
        if row.ratio() is not None:
            row.met = ours.wall <= peer.wall and ours.cpu <= _CPU_TARGET * peer.cpu
            row.voxels = "same voxels" if ours.digests == peer.digests else self._difference
            row.note = f"{traffic(ours)}; {peer.label}: {traffic(peer)}"
        return [row]

    @property
    def _difference(self) -> str:
        return f"voxels differ: {self.differs}" if self.differs else VOXELS_DIFFER


def bucket_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [
        _race(data, kind, work)
        for kind in _KINDS
        for work in _WORKS
        if (kind, work) != ("precomputed", "convert")  # which has no encoding of WKW blocks
    ]


def _race(data: Data, kind: str, work: str) -> Race:
    cube = data.cube("em")
    options = {"source": str(cube.mag), "kind": kind, "size": cube.edge}
    tools = [("wkwdask", "bucket_ours"), ("tensorstore", "bucket_tensorstore")]
    conclusions = [NoSlower(1)]
    if kind == "precomputed":  # cloud-volume writes no shards of Zarr
        is_pyramid = work == "pyramid"
        tools.append(("igneous" if is_pyramid else "cloud-volume", "bucket_cloudvolume"))
        conclusions.append(NoSlower(2, "it rounds means down" if is_pyramid else ""))
    units = tuple(Unit(tool, f"{module}.{work.capitalize()}", options) for tool, module in tools)
    title = f"to S3, 20 ms away, {_KINDS[kind]}: {_WORKS[work]}"
    return BucketRace(f"bucket/{work}/{kind}", title, units, tuple(conclusions), (cube,))
