"""The process that one measured tool runs in; started by ``client.py``, which talks to it over its
standard input and output."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    importlib.import_module("benchmarks")
    sys.path.append(sys.path.pop(0))  # where ``support`` is
    importlib.import_module("benchmarks.serving").main()
