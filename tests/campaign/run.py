"""``python tests/campaign/run.py``: the same command without a package around it.

Needs no ``tests`` package on the path: wkw 1.1 installs a package of that name, which hides the
folder.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    importlib.import_module("campaign")
    raise SystemExit(importlib.import_module("campaign.command").main())
