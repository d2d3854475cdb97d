"""N5 beside tensorstore 0.1.72 and newer, zarr-python 2.18 (its N5 store, in a separate
environment), and zarr-python 3 in a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest
from support.n5_volumes import write_dataset
from support.precomputed_volumes import labels

import wkwdask

ts = pytest.importorskip("tensorstore", reason="the extra oracles")
zarr = pytest.importorskip("zarr", reason="the extra zarr")
pytest.importorskip("imagecodecs", reason="the extra zarr")

SIZE = (50, 37, 23)
BLOCK = (16, 16, 8)
ARRAY = labels(SIZE, np.uint16)[0]
TENSORSTORE = {
    "raw": {"type": "raw"},
    "gzip": {"type": "gzip", "level": 3},
    "zlib": {"type": "gzip", "useZlib": True},
    "bzip2": {"type": "bzip2"},
    "xz": {"type": "xz"},
    "zstd": {"type": "zstd"},
    "blosc": {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2},
}


def tensorstore(folder, **metadata):
    """Open a dataset, or make one."""
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{folder}/"}}
    if metadata:
        spec |= {"metadata": metadata, "create": True}
    return ts.open(spec).result()


@pytest.mark.parametrize("name", TENSORSTORE)
def test_tensorstore(tmp_path, name):
    """tensorstore writes whole blocks at the upper ends, wkwdask truncated ones; each reads
    both."""
    theirs = tensorstore(
        tmp_path / "theirs",
        dataType="uint16",
        dimensions=SIZE,
        blockSize=BLOCK,
        compression=TENSORSTORE[name],
    )
    theirs.write(ARRAY).result()
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "theirs")[0], ARRAY)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "theirs", ((40, 20, 3), (50, 37, 20)))[0], ARRAY[40:, 20:, 3:20]
    )
    wkwdask.to_n5(ARRAY, tmp_path / "ours", chunk_shape=BLOCK, compression=name)
    np.testing.assert_array_equal(tensorstore(tmp_path / "ours").read().result(), ARRAY)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "float32", "float64"])
def test_types(tmp_path, dtype):
    array = (ARRAY.astype(np.float64) * 1.5 - 7).astype(dtype)
    tensorstore(
        tmp_path / "theirs",
        dataType=dtype,
        dimensions=SIZE,
        blockSize=BLOCK,
        compression={"type": "raw"},
    ).write(array).result()
    found = wkwdask.open(tmp_path / "theirs").compute()[0]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)
    wkwdask.to_n5(np.stack([array, array[::-1]]), tmp_path / "ours", chunk_shape=BLOCK)
    np.testing.assert_array_equal(
        tensorstore(tmp_path / "ours").read().result(), np.stack([array, array[::-1]], axis=3)
    )


def test_zarr_that_writes_is_read_by_tensorstore(tmp_path):
    """Through the codec, into a dataset that tensorstore made."""
    theirs = tensorstore(
        tmp_path,
        dataType="uint16",
        dimensions=SIZE,
        blockSize=BLOCK,
        compression=TENSORSTORE["blosc"],
        axes=["x", "y", "z"],
    )
    theirs.write(ARRAY).result()
    wkwdask.n5_as_zarr(tmp_path, write=True)
    changed = ARRAY.copy()
    changed[10:45, 30:, 5] = 77
    _in_a_fresh_interpreter(
        f"import zarr; a = zarr.open_array({str(tmp_path)!r}); a[10:45, 30:, 5] = 77; "
        "print(a.metadata.dimension_names)"
    )
    np.testing.assert_array_equal(tensorstore(tmp_path).read().result(), changed)
    np.testing.assert_array_equal(wkwdask.open(tmp_path)[0], changed)


def _in_a_fresh_interpreter(code, **environment):
    """Run code that does not import this package, whose codecs zarr-python finds by their names."""
    if not any(point.name == "n5_default" for point in entry_points(group="zarr.codecs")):
        pytest.skip("this installation has no entry point n5_default: reinstall the package")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fresh_interpreter(tmp_path):
    """Cut off blocks, groups without attributes, and several compressions: one hierarchy of
    Zarr."""
    for name in ("gzip", "zstd", "xz"):
        write_dataset(tmp_path / "c.n5" / "volumes" / name, ARRAY, BLOCK, name)
    wkwdask.n5_as_zarr(tmp_path / "c.n5", write=True)
    code = f"""
import json, sys, zarr
group = zarr.open_group({str(tmp_path / "c.n5")!r}, mode="r")["volumes"]
print(json.dumps([[name, group[name].shape, int(group[name][...].sum()), group[name][45, 30, :].tolist()] for name in ("gzip", "zstd", "xz")]))
assert "wkwdask.api" not in sys.modules
"""  # noqa: E501
    expected = [list(SIZE), int(ARRAY.sum()), ARRAY[45, 30].tolist()]
    assert json.loads(_in_a_fresh_interpreter(code)) == [
        [name, *expected] for name in ("gzip", "zstd", "xz")
    ]


# ------------------------------------------------------------------------------------------------
# zarr 2.18

PACKAGES = ("zarr==2.18.7", "numcodecs==0.15.1", "asciitree", "fasteners", "deprecated", "wrapt")
WRITER = """
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, zarr, numcodecs
assert zarr.__version__.startswith("2.18"), zarr.__version__
folder = sys.argv[1]
array = np.load(f"{folder}/array.npy")
group = zarr.open_group(zarr.N5FSStore(f"{folder}/theirs.n5"), mode="w")
made = {"gzip": numcodecs.GZip(5), "bzip2": numcodecs.BZ2(), "zlib": numcodecs.Zlib(3), "raw": None, "zstd": numcodecs.Zstd(3), "xz": numcodecs.LZMA(preset=1)}
for name, compressor in made.items():
    stored = group.create_dataset(f"volumes/{name}", shape=array.T.shape, chunks=(8, 16, 16), dtype=array.dtype, compressor=compressor)
    stored[...] = array.T
ours = zarr.open_group(zarr.N5FSStore(f"{folder}/ours.n5"), mode="r")
assert sorted(ours["em"].array_keys()) == ["s0", "s1"], list(ours["em"].array_keys())
np.save(f"{folder}/s0.npy", ours["em/s0"][...].T)
np.save(f"{folder}/s1.npy", ours["em/s1"][...].T)
"""  # noqa: E501


@pytest.fixture(scope="module")
def zarr_2(tmp_path_factory):
    """A folder with zarr-python 2.18 and what it needs, numpy and fsspec apart."""
    folder = tmp_path_factory.mktemp("zarr2")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--disable-pip-version-check",
        "--target",
        str(folder),
        *PACKAGES,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"zarr 2.18 cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    return folder


def test_zarr_2(tmp_path, zarr_2):
    """Its N5 store and wkwdask read what the other writes."""
    np.save(tmp_path / "array.npy", ARRAY)
    wkwdask.to_n5(
        ARRAY, tmp_path / "ours.n5" / "em" / "s0", chunk_shape=BLOCK, voxel_size=(4, 4, 40)
    )
    wkwdask.to_n5(
        ARRAY[::2, ::2],
        tmp_path / "ours.n5" / "em" / "s1",
        chunk_shape=BLOCK,
        mag="2-2-1",
        compression="bzip2",
    )
    environment = {**os.environ, "PYTHONPATH": str(zarr_2)}
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    for name in ("gzip", "bzip2", "zlib", "raw", "zstd", "xz"):
        np.testing.assert_array_equal(
            wkwdask.open(tmp_path / "theirs.n5", layer=f"volumes/{name}")[0], ARRAY, err_msg=name
        )
    np.testing.assert_array_equal(np.load(tmp_path / "s0.npy"), ARRAY)
    np.testing.assert_array_equal(np.load(tmp_path / "s1.npy"), ARRAY[::2, ::2])
