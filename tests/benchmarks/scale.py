"""``python tests/benchmarks/scale.py``: a pyramid job of a million files on a real dask cluster, by
tasks that do nothing.

Needs no ``tests`` package on the path, see ``run.py``.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    importlib.import_module("benchmarks")
    del sys.path[0]
    raise SystemExit(importlib.import_module("benchmarks.scale_command").main())
