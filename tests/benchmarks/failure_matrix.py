"""``python tests/benchmarks/failure_matrix.py [WORD ...]``: every fault of a cluster, injected for
real; prints a table.

Words choose rows by their names. Needs SLURM and MUNGE, and root for the row that cuts a network.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[1]
    sys.path[0] = str(tests)
    os.environ["WKWDASK_PROGRESS"] = "off"
    # where batch scripts find wkwdask and dask
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    importlib.import_module("benchmarks")
    raise SystemExit(importlib.import_module("benchmarks.failure_command").main(sys.argv[1:]))
