"""A read-only installation: neither the home folder nor ``TMPDIR`` is writable.
``tests/kernels/test_compiler.py`` shows the same for the cache of kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import wkwdask
from wkwdask.kernels import compiler

SCRIPT = textwrap.dedent("""
    import sys
    import numpy as np
    import wkwdask

    folder = sys.argv[1]
    array = np.arange(20 * 18 * 16, dtype=np.uint16).reshape(20, 18, 16) + 1
    np.testing.assert_array_equal(wkwdask.read(folder, mag=1)[0], array)
    np.testing.assert_array_equal(wkwdask.open(folder, mag=1)[0, 3].compute(), array[3])
    wkwdask.build_pyramid(folder, coarsest=2, method="mean")
    coarse = wkwdask.read(folder, mag=2)[0]
    np.testing.assert_array_equal(coarse, np.rint(array.reshape(10, 2, 9, 2, 8, 2).mean(axis=(1, 3, 5))))
    wkwdask.to_wkw(coarse, folder + "/copy/2", block_len=8, file_len=1)
    np.testing.assert_array_equal(wkwdask.read(folder + "/copy/2", ((0, 0, 0), (10, 9, 8)))[0], coarse)
    print("done", end="")
""")  # noqa: E501

CACHE_VARIABLES = ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "SLURM_TMPDIR", "TMP", "TEMP")


def run(folder, **variables):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in CACHE_VARIABLES and not name.startswith("WKWDASK_")
    }
    environment |= {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "error",
        "WKWDASK_PROGRESS": "off",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


def make_dataset(folder):
    wkwdask.create_dataset(folder, (8, 8, 8))
    array = np.arange(20 * 18 * 16, dtype=np.uint16).reshape(20, 18, 16) + 1
    wkwdask.write(folder / "color" / "1", (0, 0, 0), array, block_len=8, file_len=2)
    return folder


@pytest.mark.long
def test_only_the_dataset_is_written(tmp_path):
    """Even root cannot create a folder below a regular file."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    before = sorted(os.listdir(tmp_path))
    folder = make_dataset(tmp_path / "ds")
    result = run(
        folder,
        HOME=str(blocker / "home"),
        TMPDIR=str(blocker / "tmp"),
        WKWDASK_CACHE_DIR=str(compiler.cache_folder().parent),
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done"
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "ds"])
    assert blocker.read_text() == ""
