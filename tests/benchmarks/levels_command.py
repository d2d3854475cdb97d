"""Speed and size of LZ4, of every level of LZ4HC and of ``auto`` on real data: blocks in memory,
and pyramids from files to files on one thread."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import numpy as np

import wkwdask
from wkwdask.formats.wkw.header import BlockType
from wkwdask.formats.wkw.options import level_number
from wkwdask.kernels.blocks.batch import compress_bound, encode_from

from .data import BLOCK_LEN, data_folder, real_volumes
from .measure import MB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Encoder = tuple[str, int | str | None]
LZ4: Encoder = ("lz4", None)
ENCODERS: tuple[Encoder, ...] = (
    LZ4,
    ("lz4hc", "auto"),
    *(("lz4hc", level) for level in range(1, 13)),
)
PYRAMID_ENCODERS: tuple[Encoder, ...] = (LZ4, ("lz4hc", "auto"), ("lz4hc", 5))
_METHODS = {"EM": "median", "segmentation": "mode"}
_MAGS = ("2", "4", "8", "16")


def real_data(size: int) -> dict[str, np.ndarray]:
    """Read all samples as cubes, mirrored at their upper borders until they are long enough."""
    sample, real = data_folder() / "l4_sample", real_volumes(size)
    arrays = {
        "EM `l4_sample`, noisy": wkwdask.open(sample / "color" / "2-2-1").compute()[0],
        "EM `make_em`": real["em"],
        "segmentation `l4_sample`": wkwdask.open(sample / "segmentation" / "1").compute()[0],
        "segmentation `connectomics_seg`": real["seg"],
    }
    return {name: _cube(array, size) for name, array in arrays.items()}


def _cube(array: np.ndarray, size: int) -> np.ndarray:
    mirrored = np.pad(array, [(0, max(0, size - n)) for n in array.shape], mode="symmetric")
    return np.asfortranarray(mirrored[:size, :size, :size])


def encode(voxels: np.ndarray, encoder: Encoder) -> tuple[float, int]:
    """Encode all blocks of an array; return CPU seconds and bytes."""
    corners = np.stack(
        np.meshgrid(*(np.arange(0, n, BLOCK_LEN) for n in voxels.shape), indexing="ij"), axis=-1
    ).reshape(-1, 3)
    # not zeros, whose memory the system grants when it is written
    out = np.ones(len(corners) * compress_bound(BLOCK_LEN**3 * voxels.itemsize), np.uint8)
    kind, level = encoder
    started = time.process_time()
    encoded = encode_from(
        voxels[None],
        corners,
        out,
        block_len=BLOCK_LEN,
        block_type=BlockType.parse(kind),
        level=level_number(level),
        store_zero=True,
    )
    return time.process_time() - started, encoded.nbytes


def build(folder: Path, method: str, encoder: Encoder) -> tuple[float, int]:
    """Build four mags on one thread; return CPU seconds and bytes."""
    for mag in _MAGS:
        shutil.rmtree(folder / mag, ignore_errors=True)
    kind, level = encoder
    options: dict[str, Any] = {"compression": kind} | ({} if level is None else {"level": level})
    started = time.process_time()
    with dask.config.set(scheduler="synchronous"):
        report = wkwdask.build_pyramid(folder, method=method, mags=_MAGS, **options)
    return time.process_time() - started, report.nbytes_out


def in_turns(
    encoders: Sequence[Encoder], work: Callable[[Encoder], tuple[float, int]], repeat: int
) -> list[tuple[float, int]]:
    """Measure all encoders in turns, after one unmeasured turn of the first; return median seconds
    and bytes of each."""
    work(encoders[0])
    turns = [[work(encoder) for encoder in encoders] for _ in range(repeat)]
    return [
        (statistics.median(seconds for seconds, _ in samples), samples[0][1])
        for samples in zip(*turns, strict=True)
    ]


def table(columns: dict[str, list[str]], encoders: Sequence[Encoder]) -> str:
    """Format a table with a row for each encoder."""
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    for number, (_, level) in enumerate(encoders):
        label = (
            "LZ4" if level is None else f"level {level}" if isinstance(level, int) else f"`{level}`"
        )
        rows.append([label, *(cells[number] for cells in columns.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _encoding(voxels: np.ndarray, repeat: int) -> list[str]:
    results = in_turns(ENCODERS, lambda encoder: encode(voxels, encoder), repeat)
    return [
        f"{voxels.nbytes / MB / max(seconds, 1e-9):.0f}, {nbytes / voxels.nbytes:.2%}"
        for seconds, nbytes in results
    ]


def _pyramid(name: str, voxels: np.ndarray, repeat: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="wkwdask-levels-") as folder:
        layer, method = Path(folder) / "ds" / "layer", _METHODS[name.split()[0]]
        wkwdask.write(
            layer / "1",
            (0, 0, 0),
            voxels,
            voxel_size=(16, 16, 16),
            compression="lz4",
            file_len=len(voxels) // BLOCK_LEN,
        )
        results = in_turns(PYRAMID_ENCODERS, lambda encoder: build(layer, method, encoder), repeat)
        return [
            f"{voxels.nbytes / MB / max(seconds, 1e-9):.0f}, {nbytes / MB:.2f} MB"
            for seconds, nbytes in results
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks/levels.py", description=__doc__)
    parser.add_argument(
        "--repeat",
        type=int,
        default=5,
        metavar="N",
        help="measurements of each encoder; medians are shown (default 5)",
    )
    parser.add_argument(
        "--size",
        type=int,
        default=256,
        metavar="VOXELS",
        help="edge of the arrays whose blocks are encoded (default 256)",
    )
    parser.add_argument(
        "--edge",
        type=int,
        default=512,
        metavar="VOXELS",
        help="edge of the volumes of the pyramids (default 512)",
    )
    options = parser.parse_args(arguments)
    data = real_data(options.size)
    print(
        f"Blocks of {BLOCK_LEN}^3 in memory: MB of voxels per CPU second, bytes in percent of the "
        "voxels\n"
    )
    print(
        table({name: _encoding(voxels, options.repeat) for name, voxels in data.items()}, ENCODERS)
    )
    print(
        f"\nPyramids of {options.edge}^3, mags {', '.join(_MAGS)}: MB of the finest mag per CPU "
        "second, MB written\n"
    )
    data = real_data(options.edge)
    print(
        table(
            {name: _pyramid(name, voxels, options.repeat) for name, voxels in data.items()},
            PYRAMID_ENCODERS,
        )
    )
    return 0
