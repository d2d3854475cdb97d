"""Reads and writes with dask's query planning, which binds when dask is first imported: in a
process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = textwrap.dedent("""
    import sys
    import dask, numpy as np
    import dask.array as da
    assert dask.config.get("array.query-planning") is True
    from support.memory_volume import make_volume, store_of
    import wkwdask
    from wkwdask.graphs.read import open_array

    folder = sys.argv[1]
    array = np.random.default_rng(1).integers(0, 1000, (50, 37, 23), dtype=np.uint16)
    options = {"offset": (3, 4, 5), "block_len": 8, "file_len": 2, "compression": "lz4"}
    wkwdask.to_wkw(array, folder + "/numpy/1", **options)
    wkwdask.to_wkw(da.from_array(array, chunks=(20, 30, 9)), folder + "/dask/1", **options)
    wkwdask.to_wkw(da.from_array(array, chunks=(20, 30, 9)), folder + "/delayed/1", compute=False, **options).compute()
    opened = wkwdask.open(folder + "/dask/1", origin="absolute")
    wkwdask.to_wkw(opened[:, 3:53, 4:41, 5:28] + 1, folder + "/more/1", **options)
    np.testing.assert_array_equal(wkwdask.read(folder + "/more/1", ((3, 4, 5), (53, 41, 28)))[0], array + 1)

    dask.config.set(scheduler="synchronous")
    array = np.random.default_rng(1).integers(1, 1000, (2, 50, 37, 23), dtype=np.uint16)
    volume = make_volume("read", array, (21, 3, 9))
    whole = open_array(volume, chunks=10**6, box=volume.box, extent=volume.box, axes=None, channel=None)
    np.testing.assert_array_equal(whole.compute(), array)
    store_of("read").reads.clear()
    np.testing.assert_array_equal(whole[1, :, :, 7].compute(), array[1, :, :, 7])
    assert len(store_of("read").reads) == 1
    blocks = open_array(volume, chunks="block", box=volume.box, extent=volume.box, axes="czyx", channel=None)
    np.testing.assert_array_equal(blocks[:, ::-2, 3, 1:9:4].compute(), array.transpose(0, 3, 2, 1)[:, ::-2, 3, 1:9:4])
    store_of("read").reads.clear()
    blocks[:, 0, 0].compute()
    assert len(store_of("read").reads) == 7  # chunks that a slice does not touch are not read
    np.testing.assert_array_equal((blocks.mean(axis=0) + 1).compute(), array.transpose(0, 3, 2, 1).mean(axis=0) + 1)
    print("planned", end="")
""")  # noqa: E501


@pytest.mark.long
def test_results_are_those_without_query_planning(tmp_path):
    """The planner of dask 2026.8 does not fuse slices into reads, but results and chunks are the
    same."""
    environment = {
        **os.environ,
        "DASK_ARRAY__QUERY_PLANNING": "True",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "planned"
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.wkw")}
        for folder in (tmp_path / "numpy", tmp_path / "dask", tmp_path / "delayed")
    ]
    assert contents[0] == contents[1] == contents[2] != {}
    assert {path.name for path in tmp_path.rglob(".*")} <= {
        ".wkwdask.json",
        ".wkwdask-files.npy",
        ".wkwdask-progress.jsonl",
    }
