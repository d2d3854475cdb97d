"""docs/training.md: its two scripts run, with PyTorch or with a stand-in that starts worker
processes in the same two ways."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from usage.test_pages import ROOT, read_steps

import wkwdask

STAND_IN = Path(__file__).parent.parent / "support" / "stand_in"


@pytest.mark.long
def test_the_loader_reads_batches_in_forked_and_spawned_workers(tmp_path):
    *_, patches, train = [
        step
        for step in read_steps((ROOT / "docs" / "training.md").read_text(encoding="utf-8"))
        if step.is_python
    ]
    (tmp_path / "patches.py").write_text(patches.text)
    (tmp_path / "train.py").write_text(train.text)
    for layer, dtype in (("color", np.uint8), ("segmentation", np.uint32)):
        # the box of the demo dataset
        wkwdask.to_wkw(
            np.ones((512, 512, 192), dtype),
            tmp_path / "demo-dataset" / layer / "1",
            offset=(1000, 2000, 300),
            voxel_size=(4, 4, 8),
            compression="lz4",
        )
    paths = [
        str(ROOT),
        *([] if importlib.util.find_spec("torch") else [str(STAND_IN)]),
        os.environ.get("PYTHONPATH", ""),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == train.printed, done.stderr
