"""Rows of the viewer's server: chunks of WKW beside servers of files over a converted copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .data import BLOCK_LEN, ITEMSIZE, LAYERS
from .measure import MB
from .pyramid_cases import LABELS
from .race import Faster, Race, Unit
from .works.base import read_mag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .data import Cube, Data
    from .measure import Outcome
    from .table import Row

_REQUESTS_PER_SECOND = 1500


@dataclass(frozen=True)
class Converted:
    """A volume as precomputed, one file for each chunk of the size of a block."""

    cube: Cube
    """The voxels."""

    @property
    def path(self) -> str:
        """The volume's folder."""
        return f"{self.cube.dataset}-converted"

    def make(self) -> None:
        """Write it, if it is not there."""
        import wkwdask

        self.cube.make()
        if not Path(self.path).is_dir():
            voxels = read_mag(self.cube.mag, self.cube.edge)
            chunks = {"shard_shape": False, "chunk_shape": (BLOCK_LEN,) * 3, "compression": "raw"}
            wkwdask.to_precomputed(voxels, self.path, voxel_size=(8, 8, 8), **chunks)


@dataclass(frozen=True)
class Requests(Faster):
    """The first server answers so many requests per CPU second; both are shown beside each
    other."""

    chunk_nbytes: int = 0
    """Bytes of the voxels of a chunk."""

    def rows(self, work: str, outcomes: Sequence[Outcome]) -> list[Row]:
        """Return one line."""
        (row,) = super().rows(work, outcomes)
        row.target = "" if self.target is None else f">= {self.target:g} requests per CPU s"
        if row.ratio() is not None:
            rates = [side.cpu_speed * MB / self.chunk_nbytes for side in (row.tool, row.against)]
            row.met = None if self.target is None else rates[0] >= self.target
            row.note = f"{rates[0]:.0f} requests per CPU s beside {rates[1]:.0f}"
        return [row]


def served_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    return [_served(data, layer) for layer in LAYERS]


def _served(data: Data, layer: str) -> Race:
    cube, nbytes = data.cube(layer), BLOCK_LEN**3 * ITEMSIZE[layer]
    copy = Converted(cube)
    converted = {"path": copy.path, "chunk_nbytes": nbytes}
    units = (
        Unit("wkwdask view, WKW", "ours_served.Wkw", {"path": cube.mag, "chunk_nbytes": nbytes}),
        Unit("wkwdask view, converted copy", "ours_served.Files", converted),
        Unit("cloud-volume, converted copy", "cloudvolume_served.Files", converted),
        Unit("nginx, converted copy", "nginx_served.Files", converted, show_version=False),
    )
    pairs = ((0, 1, _REQUESTS_PER_SECOND), (0, 2, _REQUESTS_PER_SECOND), (0, 3, None), (1, 2, None))
    rows = tuple(
        Requests(tool, against, target, chunk_nbytes=nbytes) for tool, against, target in pairs
    )
    return Race(
        f"view/{layer}", f"serve {LABELS[layer]}, all chunks of {BLOCK_LEN}^3", units, rows, (copy,)
    )
