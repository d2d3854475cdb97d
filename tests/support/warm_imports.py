"""Import this module before a process forks: it imports what workers use and builds a small
pyramid, which loads the kernels."""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask
import numpy as np
from distributed.utils import get_mp_context

import wkwdask

with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
    get_mp_context()  # which imports pandas

with tempfile.TemporaryDirectory() as _folder, dask.config.set(scheduler="synchronous"):
    wkwdask.create_dataset(Path(_folder) / "ds", (4, 4, 4))
    _labels = np.arange(16**3, dtype=np.uint32).reshape(16, 16, 16) // 7
    wkwdask.to_wkw(
        _labels, Path(_folder) / "ds" / "seg" / "1", block_len=8, file_len=1, compression="lz4"
    )
    wkwdask.build_pyramid(Path(_folder) / "ds", "seg", mags=("2-2-1", "4-4-2"))
