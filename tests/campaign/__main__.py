"""``python -m tests.campaign``, or ``python -m campaign`` in ``tests``."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where ``support`` and ``verbs`` are
from .command import main

raise SystemExit(main())
