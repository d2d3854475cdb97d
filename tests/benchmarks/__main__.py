"""``python -m tests.benchmarks``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where ``support`` is
from .command import main

raise SystemExit(main())
