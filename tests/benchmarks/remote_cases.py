"""Rows that read from a web server behind a proxy with 20 ms of latency: requests, bytes, seconds
and CPU seconds beside webknossos and tensorstore."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.nginx import nginx, nginx_program
from support.proxy import proxy

from .measure import MB, Outcome
from .race import Race, Unit, run_units
from .table import VOXELS_DIFFER, Row
from .works.base import boxes, read_mag, slices
from .works.precomputed import RESOLUTION, ours

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .data import Cube, Data

LATENCY_SECONDS = 0.02
_SLICES, _BOXES = 10, 10
_TITLES = {
    "wkw": "WKW, files of {half}^3", "precomputed-sharded": "precomputed, shards of {shard}^3",
    "precomputed-files": "precomputed, a file per chunk of {chunk}^3",
    "zarr": "Zarr, shards of {shard}^3", "zarr-files": "Zarr, a file per chunk of {chunk}^3",
}  # fmt: skip


@dataclass(frozen=True)
class Served:
    """EM as one of the formats, in the folder that the server serves."""

    cube: Cube
    """The voxels."""
    form: str
    """Its format, see ``_TITLES``."""

    @property
    def path(self) -> str:
        """Path below the served folder."""
        if self.form == "wkw":
            return str(Path(self._wkw.mag).relative_to(self.cube.data.folder))
        return f"served-{self.form}-{self.cube.edge}" + (
            "/0" if self.form.startswith("zarr") else ""
        )

    @property
    def _wkw(self) -> Cube:
        return replace(self.cube, file_vx=self.cube.edge // 2)

    @property
    def chunk(self) -> int:
        """Edge of a chunk [voxels]."""
        return min(64, self.cube.edge // 8)

    def make(self) -> None:
        """Write it, if it is not there."""
        folder = self.cube.data.folder / self.path
        if self.form == "wkw":
            self._wkw.make()
        elif not folder.is_dir():
            self._write(folder, read_mag(self.cube.mag, self.cube.edge)[0])

    def _write(self, folder: Path, voxels: Any) -> None:
        import wkwdask

        chunks = (self.chunk,) * 3
        if not self.form.startswith("zarr"):
            sharding = ours(self.cube.edge, voxels.dtype, sharded=self.form.endswith("sharded"))
            wkwdask.to_precomputed(
                voxels, folder, shard_shape=sharding, chunk_shape=chunks, voxel_size=RESOLUTION
            )
            return
        files = chunks if self.form == "zarr-files" else (4 * self.chunk,) * 3
        codecs = [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": 3, "checksum": False}},
        ]
        sharding = {
            "name": "sharding_indexed",
            "configuration": {"chunk_shape": chunks, "codecs": codecs, "index_codecs": codecs[:1]},
        }
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": voxels.shape[::-1],
            "data_type": voxels.dtype.name,
            "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": files}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "dimension_names": ["z", "y", "x"],
            "codecs": codecs if files == chunks else [sharding],
        }
        folder.mkdir(parents=True)
        (folder / "zarr.json").write_text(json.dumps(document))
        wkwdask.write(f"zarr://{folder}", None, voxels[None], region=((0, 0, 0), voxels.shape))


@dataclass(frozen=True)
class RemoteRace(Race):
    """A race of units that read from the server, whose URL each gets as ``server``."""

    def run(self, repeat: int, say: Callable[[str], None]) -> list[Row]:
        """Measure all units in turns, and count what passes through the proxy."""
        say(self.name)
        if nginx_program() is None:
            return [Row(self.work, Outcome("nginx", problem="not installed"))]
        for volume in self.volumes:
            volume.make()
        folder = self.volumes[0].cube.data.folder
        with ExitStack() as stack:
            (folder / "nginx").mkdir(exist_ok=True)
            web = stack.enter_context(nginx(folder, folder / "nginx"))
            far = stack.enter_context(proxy(web.url, LATENCY_SECONDS))
            units = tuple(
                replace(unit, options=unit.options | {"server": far.url}) for unit in self.units
            )
            outcomes = run_units(units, repeat, far)
        return [
            row for conclusion in self.conclusions for row in conclusion.rows(self.work, outcomes)
        ]


@dataclass(frozen=True)
class NoMore:
    """The first tool makes no more requests than the second, and takes no more seconds."""

    tool: int
    """Place among the units."""
    against: int
    """Place among the units."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        ours, peer = outcomes[self.tool], outcomes[self.against]
        row = Row(work, ours, peer, "no more requests, no more seconds")
        if row.ratio() is not None:
            row.met = ours.requests <= peer.requests and ours.wall <= peer.wall
            row.voxels = "same voxels" if ours.digests == peer.digests else VOXELS_DIFFER
            row.note = f"{traffic(ours)}; {peer.label}: {traffic(peer)}"
        return [row]


def traffic(outcome: Outcome) -> str:
    """Describe the requests of a measurement, and its time."""
    return (
        f"{outcome.requests} requests, {outcome.received / MB:.2f} MB, {outcome.wall:.3f} s, "
        f"{outcome.cpu:.3f} CPU s"
    )


def remote_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [_race(data, form, *work) for form in _TITLES for work in _works(data.real_size)]


def _works(size: int) -> list[tuple[str, str, Sequence[Any], bool]]:
    """List name, title, boxes and whether the volume is open, of all works."""
    edge = min(128, size // 2)
    some, planes = boxes(size, edge, _BOXES), slices(size, "xy", _SLICES)
    return [
        ("slice", "open, a slice xy", planes[:1], False),
        ("box", f"open, a box of {edge}^3", some[:1], False),
        ("whole", f"open, all of {size}^3", [((0, 0, 0), (size,) * 3)], False),
        ("slices", f"{_SLICES} slices xy", planes, True),
        ("boxes", f"{_BOXES} boxes of {edge}^3", some, True),
    ]


def _race(
    data: Data, form: str, name: str, title: str, parts: Sequence[Any], is_open: bool
) -> Race:
    served = Served(data.cube("em"), form)
    kind = form.partition("-")[0]
    nbytes = sum((b[0] - a[0]) * (b[1] - a[1]) * (b[2] - a[2]) for a, b in parts)
    options = {
        "path": served.path,
        "kind": kind,
        "boxes": parts,
        "nbytes": nbytes,
        "is_open": is_open,
    }
    peer = "webknossos" if kind == "wkw" else "tensorstore"
    units = (
        Unit("wkwdask", "remote_ours.Read", options),
        Unit(peer, f"remote_{peer}.Read", options),
    )
    what = _TITLES[form].format(
        half=data.real_size // 2, chunk=served.chunk, shard=4 * served.chunk
    )
    return RemoteRace(
        f"remote/{form}/{name}", f"20 ms away, {what}: {title}", units, (NoMore(0, 1),), (served,)
    )
