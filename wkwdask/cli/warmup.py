"""Command that compiles kernels before they are needed, and the work that needs them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wkwdask.cli.results import Facts, prints_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Jobs = list[tuple[Callable[..., None], tuple[Any, ...]]]

_TYPES = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
)
_UNSIGNED = _TYPES[:4]
_DEFAULT_METHODS = {"uint8": ("median",), "uint32": ("mode",)}
# two with separate kernels, any factor, and windows whose sums take more than 32 bits
_FACTORS = ((2, 2, 1), (2, 2, 2), (2, 1, 1), (64, 32, 32))


@click.command(short_help="Compile kernels before they are needed.")
@click.argument("types", nargs=-1, type=click.Choice(_TYPES), metavar="[TYPE]...")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also all kernels of labels, and all methods and window sizes of pyramids.",
)
@click.option(
    "--workers", type=click.IntRange(1), help="Processes that compile. Default: one per core."
)
@prints_facts
def warmup(types: tuple[str, ...], everything: bool, workers: int | None) -> Facts:
    """Compile the kernels that read, write and downsample voxels of each TYPE, by default uint8,
    uint16, uint32 and uint64.

    Kernels are compiled when they are first needed, which takes seconds, and their machine code is
    kept in WKWDASK_CACHE_DIR, by default ~/.cache/wkwdask. Run this command to fill the folder
    beforehand, in a container image or for all nodes of a cluster. Users without write permission
    read it all the same.

    \b
    Examples:
      wkwdask warmup uint8 uint32
      WKWDASK_CACHE_DIR=/opt/wkwdask-kernels wkwdask warmup --all
    """
    from wkwdask.kernels.compiler import CACHE_VARIABLE, cache_folder

    folder, chosen = cache_folder(), os.environ.get(CACHE_VARIABLE)
    if folder is None or (chosen and folder.parent != Path(chosen)):
        raise PermissionError(
            f"{chosen or CACHE_VARIABLE}: no folder for machine code, which must belong to you and "
            "not be writable by everybody"
        )
    started = time.monotonic()
    jobs = [job for dtype in types or _UNSIGNED for job in _jobs(dtype, everything)]
    if everything:
        jobs += [(_use_positions, ()), (_use_guards, ())]
    compile_kernels(jobs, workers)
    number, seconds = sum(path.is_file() for path in folder.iterdir()), time.monotonic() - started
    return Facts(
        {"kernels": number, "folder": str(folder), "seconds": seconds},
        f"{number} kernels in {folder}, after {seconds:.0f} s",
    )


def compile_for_demo() -> None:
    """Compile the kernels of the demo dataset, unless machine code was saved before."""
    from wkwdask.kernels.compiler import cache_folder

    folder = cache_folder()
    if folder is not None and not any(folder.iterdir()):
        compile_kernels(
            [(_build_pyramids, (dtype, methods, 32)) for dtype, methods in _DEFAULT_METHODS.items()]
            + [(_use_positions, ())]
        )


def compile_kernels(jobs: Jobs, workers: int | None = None) -> None:
    """Do work that needs kernels, in several processes: numba compiles one function at a time in
    each."""
    import logging
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from wkwdask.store.cores import available_cores

    workers = min(workers or available_cores(), len(jobs))
    if logging.getLogger(__name__).isEnabledFor(logging.WARNING):
        click.echo(
            (
                f"compiling kernels in {workers} {'process' if workers == 1 else 'processes'}, "
                "once for this version"
            ),
            err=True,
        )
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_be_quiet
    ) as pool:
        for done in [pool.submit(function, *arguments) for function, arguments in jobs]:
            done.result()


def _be_quiet() -> None:
    os.environ["WKWDASK_PROGRESS"] = "off"


def _jobs(dtype: str, everything: bool) -> Jobs:
    methods = ("median", "mean", "mode")
    # the border of an odd box cuts windows, which take other kernels
    jobs: Jobs = [(_build_pyramids, (dtype, methods, 31)), (_use_arrays, (dtype,))]
    if everything:
        jobs += [(_use_windows, (dtype, factor)) for factor in _FACTORS]
        if dtype in _UNSIGNED:
            jobs += [(_use_blocks, (dtype,)), (_use_labels, (dtype,))]
    return jobs


def _build_pyramids(dtype: str, methods: Sequence[str], edge: int) -> None:
    """Write files of several blocks with dask, and downsample them."""
    import dask.array as da

    import wkwdask

    with tempfile.TemporaryDirectory() as folder:
        dataset = wkwdask.create_dataset(f"{folder}/dataset", (4, 4, 8)).path
        for method in methods:
            voxels = da.ones((edge, edge, edge), dtype=dtype)
            wkwdask.to_wkw(
                voxels, f"{dataset}/{method}/1", block_len=8, file_len=4, category="color"
            )
            wkwdask.build_pyramid(dataset, method, method=method, mags=("2-2-1", "4-4-2"))


def _use_arrays(dtype: str) -> None:
    """Write and read arrays in memory: parts of blocks, files of one block and of several, kept
    blocks. Convert blocks to frames."""
    import numpy as np

    import wkwdask
    from wkwdask.kernels.blocks.decoded import place_blocks
    from wkwdask.kernels.blocks.read import array_memory
    from wkwdask.kernels.codecs.blosc_frames import are_zero_outside, convert_chunks
    from wkwdask.kernels.codecs.blosc_layout import COPY

    one, place = np.zeros(1, np.uint8), np.array([[0, 1]])
    convert_chunks(one, place, COPY, 1, 1, np.zeros(64, np.uint8))
    are_zero_outside(one, place, np.array([[0, 0, 0, 1, 1, 1]]), 1, 1, is_compressed=False)
    array = np.ones((31, 31, 31), dtype)
    memory = array_memory(np.empty((1, 1, 1, 1), dtype), 0)
    assert memory is not None
    place_blocks(np.array([array.ctypes.data]), np.zeros((1, 3), np.int64), (1, 1, 1, 1), memory)
    with tempfile.TemporaryDirectory() as folder:
        dataset = wkwdask.create_dataset(f"{folder}/dataset", (4, 4, 8)).path
        for file_len in (1, 4):
            mag = f"{dataset}/{file_len}/1"
            wkwdask.write(mag, (0, 0, 0), array, block_len=8, file_len=file_len)
            wkwdask.read(mag, ((0, 0, 0), (28, 31, 31)))
            wkwdask.read_many(mag, [((0, 0, 0), (9, 9, 9)), ((1, 1, 1), (10, 10, 10))])
            wkwdask.open(mag).compute(scheduler="synchronous")


def _use_blocks(dtype: str) -> None:
    """Encode blocks with and without zeros, and clear some."""
    import numpy as np

    from wkwdask.kernels.blocks import batch
    from wkwdask.kernels.blocks.layout import LZ4, cubes_table

    corners, memory, array = (
        np.zeros((1, 3), np.int64),
        np.zeros(1 << 12, np.uint8),
        np.ones((1, 4, 4, 4), dtype),
    )
    for store_zero in (True, False):
        batch.encode_from(
            array, corners, memory, block_len=4, block_type=LZ4, level=5, store_zero=store_zero
        )
    batch.clear_into(cubes_table((0, 0, 0), 2, high=(2, 1, 1)), 2, array)


def _use_windows(dtype: str, factor: tuple[int, int, int]) -> None:
    """Reduce windows by every method."""
    import numpy as np

    from wkwdask.kernels.window.reduce import IGNORE_ZERO_METHODS, METHODS, reduce_windows

    source, out = np.zeros(factor, dtype, order="F"), np.zeros((1, 1, 1), dtype, order="F")
    for method in METHODS:
        reduce_windows(source, factor, method, out)
        if method in IGNORE_ZERO_METHODS:
            reduce_windows(source, factor, method, out, ignore_zero=True)


def _use_positions() -> None:
    """Find the nearest of some positions, as the demo dataset does."""
    from wkwdask.viewer.demo import make_labels

    make_labels((0, 0, 0), (8, 8, 8))


def _use_guards() -> None:
    """Join labels of two blocks by guards."""
    import numpy as np

    from wkwdask.ids.guards import GuardedSets, Guards

    sets = GuardedSets(Guards(one_per_block=True), np.array([1, 1]), np.array([1, 1]))
    sets.unite_in_order(np.array([[0, 1]]))


def _use_labels(dtype: str) -> None:
    """Find components and statistics of labels, map ids, count values."""
    import numpy as np

    from wkwdask.kernels.labels.components import label_brick
    from wkwdask.kernels.labels.tables import LabelTable
    from wkwdask.kernels.labels.values import count_values, map_ids

    labels = np.ones((4, 4, 4), dtype, order="F")
    runs = label_brick(labels, 26).runs
    runs.face(0, 0, np.zeros(2, np.uint32))
    runs.paint(np.zeros(2, dtype), labels, (0, 0, 0))
    labels[...] = 1
    LabelTable(labels.dtype).add(labels, (0, 0, 0))
    for values in _TYPES:
        LabelTable(labels.dtype, np.dtype(values), 1).add(
            labels, (0, 0, 0), np.ones((1, 4, 4, 4), values)
        )
    for ids, out in (("uint64", dtype), ("int64", dtype), ("uint64", "uint16")):
        map_ids(
            np.zeros(4, dtype),
            np.zeros(1, np.uint64),
            np.zeros(1, ids),
            np.zeros(4, out),
            keeps=True,
        )
    if dtype in ("uint8", "uint16"):
        count_values(np.zeros(4, dtype))
