"""``python -m tests.benchmarks``."""

from .command import main

raise SystemExit(main())
