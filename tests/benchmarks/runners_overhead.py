"""``python tests/benchmarks/runners_overhead.py [TASKS] [MANY]``: what every runner takes for a
task that does nothing, and its memory meanwhile.

Prints three tables: the overhead of TASKS (2,000) tasks on every runner, the memory of MANY
(100,000) tasks through a dask Client and through a job array, sampled every second, and whether
every runner writes the same pyramid. Needs SLURM and MUNGE.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    os.environ["WKWDASK_PROGRESS"] = "off"
    # where batch scripts find wkwdask and dask
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    importlib.import_module("benchmarks")
    raise SystemExit(
        importlib.import_module("benchmarks.overhead_command").main(*map(int, sys.argv[1:]))
    )
