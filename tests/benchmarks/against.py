"""``python tests/benchmarks/against.py COMMIT``: this tree beside another commit of it. Needs no
``tests`` package on the path, as ``run.py``."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    importlib.import_module("benchmarks")
    raise SystemExit(importlib.import_module("benchmarks.against_command").main())
