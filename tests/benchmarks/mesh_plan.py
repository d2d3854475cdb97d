"""``python tests/benchmarks/mesh_plan.py [LABELS CELLS]``: the plan of a meshing job.

Cells are made up, by default 10^6 with 10^8 labels. The process that starts a job does between its
phases what is timed here.

Labels of neighbouring cells overlap: each label lies in about three cells.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from wkwdask.formats.precomputed.mesh_writer import choose_mesh_sharding
from wkwdask.meshing.cell_file import CellFile, Fragment, cell_name, write_cell
from wkwdask.meshing.label_tables import LabelRows, LabelTables
from wkwdask.meshing.shard_tasks import batches
from wkwdask.meshing.surface import Surface

CELLS_PER_LABEL, NBYTES_PER_LABEL, GROUPS = 3, 5000, 32


def labels_of(cell, per_cell):
    """Return the labels of a cell: its own, and those of the cells before it."""
    first = max(0, cell - CELLS_PER_LABEL + 1) * per_cell
    return np.arange(first, (cell + 1) * per_cell, dtype=np.uint64) * np.uint64(2**35 + 1)


def rows(num_labels, num_cells):
    """Yield what the files of all cells hold, as the plan reads it."""
    for cell in range(num_cells):
        labels = labels_of(cell, num_labels // num_cells)
        ones = np.ones(len(labels), np.int64)
        yield LabelRows(labels, ones, 0 * ones)
        yield LabelRows(labels, 0 * ones, 100 * ones)


def time_of_cell_file(folder, per_cell, repeats=50):
    """Return the CPU seconds in which the labels of one cell are read from its file."""
    surface = Surface(np.zeros((3, 3), np.int32), np.zeros((1, 3), np.uint32))
    labels = np.arange(CELLS_PER_LABEL * per_cell, dtype=np.uint64)
    groups = [
        (group, [Fragment(label, surface, bytes(100)) for label in labels[group::GROUPS].tolist()])
        for group in range(GROUPS)
    ]
    sizes = labels, labels.astype(np.int64)
    write_cell(folder, cell_name(0, (0, 0, 0)), groups, sizes, {"raw": 0, "kept": 0})
    start = time.process_time()
    for _ in range(repeats):
        CellFile(folder, 0, (0, 0, 0)).voxels()
    return (time.process_time() - start) / repeats


@contextmanager
def watched_memory():
    """Collect the memory of this process [bytes], without mapped files, every 20 ms."""
    seen, end = [0], threading.Event()

    def watch():
        while not end.wait(0.02):
            status = Path("/proc/self/status").read_text()
            seen.append(1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        end.set()
        thread.join()


def simulate(folder, num_labels, num_cells):
    """Plan a level and the shards; return the labels found, and numbers of sharding, time and
    memory."""
    with watched_memory() as seen:
        found, numbers = _simulated(folder, num_labels, num_cells)
    return found, {**numbers, "peak_mb": max(seen) >> 20}


def _simulated(folder, num_labels, num_cells):
    per_file = time_of_cell_file(folder, num_labels // num_cells)
    start = time.process_time()
    found = LabelTables(folder).write(0, rows(num_labels, num_cells), 1)
    tables = time.process_time() - start
    edge = int(np.ceil(num_cells ** (1 / 3)))
    cells = np.indices((edge,) * 3).reshape(3, -1).T[:num_cells]
    counts = np.full(num_cells, CELLS_PER_LABEL * num_labels // num_cells)
    sharding = choose_mesh_sharding(num_labels, int(counts.sum()) * NBYTES_PER_LABEL)
    sorting = list(batches(np.insert(cells, 0, 0, axis=1), counts, counts * NBYTES_PER_LABEL))
    return found, {
        "shard_bits": sharding.shard_bits,
        "minishard_bits": sharding.minishard_bits,
        "batches": len(sorting),
        "tables_cpu_s": round(tables, 1),
        "reading_cpu_s": round(per_file * num_cells, 1),
    }


if __name__ == "__main__":
    labels, cells = map(int, sys.argv[1:] or (10**8, 10**6))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        print(*simulate(folder, labels, cells))
