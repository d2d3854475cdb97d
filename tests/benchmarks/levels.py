"""``python tests/benchmarks/levels.py``: speed and size of all levels of LZ4HC. Needs no ``tests``
package on the path, as ``run.py``."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    importlib.import_module("benchmarks")
    del sys.path[0]
    raise SystemExit(importlib.import_module("benchmarks.levels_command").main())
