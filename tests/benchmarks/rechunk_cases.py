"""Rows of rechunked mags: other files, other blocks, another compression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .data import BLOCK_LEN, LAYERS
from .pyramid_cases import LABELS
from .race import Faster, OfCopy, Race, Unit

if TYPE_CHECKING:
    from .data import Cube, Data

_LARGE_BLOCK_LEN = 64


def rechunk_cases(data: Data) -> list[Race]:
    """List everything, in the order of the table."""
    whole, quarter = data.real_size, max(BLOCK_LEN, data.real_size // 4)
    cases = []
    for layer in LAYERS:
        cases += [
            _files(data, layer, "split", whole, quarter),
            _files(data, layer, "join", quarter, whole),
            _blocks(data, layer),
            _compressed(data, layer),
            _faster(data, layer),
        ]
    return [*cases, _beside_the_disk(data)]


class _Units:
    """Makes the units of one race."""

    def __init__(self, data: Data, name: str, cube: Cube) -> None:
        self._data, self._name, self._cube, self._number = data, name, cube, 0

    def _options(self) -> dict:
        self._number += 1
        return {
            "folder": self._data.fresh(f"{self._name}-{self._number}"),
            "nbytes": self._cube.nbytes,
        }

    def ours(self, label: str, **options: object) -> Unit:
        return Unit(
            f"wkwdask, {label}",
            "ours.Rechunk",
            {"path": self._cube.mag, "size": self._cube.edge} | self._options() | options,
        )

    def theirs(self, **options: int) -> Unit:
        source = {"source": self._cube.dataset, "layer": self._cube.layer, "size": self._cube.edge}
        return Unit("webknossos", "with_webknossos.Rechunk", source | self._options() | options)

    def copy(self) -> Unit:
        return Unit(
            "cp, sync",
            "copying.Copy",
            {"path": self._cube.mag} | self._options(),
            show_version=False,
        )


def _files(data: Data, layer: str, work: str, before: int, after: int) -> Race:
    """Other files of the same blocks; ours also as if it had to decode them."""
    lengths = before // BLOCK_LEN, after // BLOCK_LEN
    name, cube = (
        f"rechunk/{layer}/{work}",
        data.cube(layer, file_vx=before, compression="lz4hc"),
    )
    units = _Units(data, name, cube)
    return Race(
        name,
        f"rechunk {LABELS[layer]}, lz4hc, file_len {lengths[0]} to {lengths[1]}",
        (
            units.ours("spliced", file_len=lengths[1]),
            units.ours("decoded, level 5", file_len=lengths[1], level=5),
            units.theirs(block_vx=BLOCK_LEN, file_vx=after),
        ),
        (
            Faster(0, 1, 10.0, shows_peak=True),
            Faster(0, 2, shows_peak=True),
            Faster(1, 2, shows_peak=True),
        ),
        (cube,),
    )


def _blocks(data: Data, layer: str) -> Race:
    """Larger blocks in files of the same edge."""
    name, cube = f"rechunk/{layer}/block-len", data.cube(layer, compression="lz4hc")
    units, edge = _Units(data, name, cube), cube.edge
    ours = [
        units.ours(
            f"level {level}",
            block_len=_LARGE_BLOCK_LEN,
            file_len=edge // _LARGE_BLOCK_LEN,
            level=level,
        )
        for level in (5, 9)
    ]
    work = f"rechunk {LABELS[layer]}, lz4hc, block_len {BLOCK_LEN} to {_LARGE_BLOCK_LEN}"
    return Race(
        name,
        work,
        (*ours, units.theirs(block_vx=_LARGE_BLOCK_LEN, file_vx=edge)),
        (Faster(0, 2, shows_peak=True), Faster(1, 2, shows_peak=True)),
        (cube,),
    )


def _compressed(data: Data, layer: str) -> Race:
    """Raw blocks to LZ4HC."""
    name, cube = f"rechunk/{layer}/raw-to-lz4hc", data.cube(layer, compression="raw")
    units = _Units(data, name, cube)
    ours = [units.ours(f"level {level}", compression="lz4hc", level=level) for level in (5, 9)]
    return Race(
        name,
        f"compress {LABELS[layer]}, raw to lz4hc",
        (*ours, units.theirs()),
        (Faster(0, 2, shows_peak=True), Faster(1, 2, shows_peak=True)),
        (cube,),
    )


def _faster(data: Data, layer: str) -> Race:
    """LZ4HC to LZ4; webknossos writes LZ4HC only, so it is compared on its way to LZ4HC."""
    name, cube = f"rechunk/{layer}/lz4hc-to-lz4", data.cube(layer, compression="lz4hc")
    units = _Units(data, name, cube)
    race = (
        units.ours("lz4", compression="lz4"),
        units.theirs(block_vx=BLOCK_LEN, file_vx=cube.edge),
    )
    return Race(
        name,
        f"compress {LABELS[layer]}, lz4hc to lz4 (webknossos: to lz4hc)",
        race,
        (Faster(0, 1, shows_peak=True),),
        (cube,),
    )


def _beside_the_disk(data: Data) -> Race:
    """Files of half the edge from one large raw file: the disk sets the pace."""
    name, cube = "rechunk/disk", data.cube("seg", data.size, compression="raw")
    units, file_len = _Units(data, name, cube), max(1, data.size // 2 // BLOCK_LEN)
    work = (
        f"rechunk segmentation of {data.size}^3 (uint32), raw, file_len {data.size // BLOCK_LEN} "
        f"to {file_len}, beside cp -r and sync"
    )
    return Race(
        name,
        work,
        (units.ours("spliced", file_len=file_len, size=0), units.copy()),
        (OfCopy(0, 1, 0.5),),
        (cube,),
    )
