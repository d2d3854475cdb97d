"""Arrays with our codecs in zarr-python: any type, shape, order and neighbours; many writers;
another interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import voxel_array

pytest.importorskip("zarr", reason="zarr is not installed")
import zarr
from support.zarr_arrays import Stored, length_header, write_and_open
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

import wkwdask
from wkwdask.errors import UnsupportedError

DTYPES = (
    "bool",
    "uint8",
    "int16",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
)
BEFORE = {
    "nothing": (),
    "gzip": (GzipCodec(level=1),),
    "zstd": (ZstdCodec(level=1),),
    "blosc": (BloscCodec(typesize=4, cname="lz4"),),
    "crc32c": (Crc32cCodec(),),
    "two": (ZstdCodec(level=1), Crc32cCodec()),
}
BEHIND = {"nothing": (), "crc32c": (Crc32cCodec(),), "footer": (wkwdask.pad_codec(3, "end"),)}


def numbered_header(encoded, layout):
    """A header that says what it was made of."""
    text = f"{len(encoded)} {sum(encoded) % 251} {layout.shape} {layout.dtype}"
    return text.encode().ljust(layout.header_nbytes, b"\n")


CODECS = {
    "zeros": lambda: wkwdask.offset_codec(5),
    "literal": lambda: wkwdask.offset_codec(prefix=b"literal", strict=True),
    "function": lambda: wkwdask.offset_codec(80, header="numbered", strict=True),
    "pad": lambda: wkwdask.pad_codec(padding=b"ab", location="start"),
    "footer": lambda: wkwdask.pad_codec(padding=b"ab", location="end", strict=True),
}


@st.composite
def arrays(draw):
    """Chunks that do not divide the shape, axes of one element, every place of the codec among the
    others."""
    ndim = draw(st.integers(1, 4))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    shape = tuple(draw(st.integers(1, 3 * n)) for n in chunks)
    options = {"dtype": draw(st.sampled_from(DTYPES)), "shape": shape, "chunks": chunks}
    options["serializer"] = BytesCodec(endian=draw(st.sampled_from(("little", "big"))))
    if draw(st.booleans()):
        options["filters"] = [TransposeCodec(order=tuple(draw(st.permutations(range(ndim)))))]
    kind = draw(st.sampled_from(sorted(CODECS)))
    behind = draw(st.sampled_from(sorted(BEHIND)))
    compressors = [*BEFORE[draw(st.sampled_from(sorted(BEFORE)))], CODECS[kind](), *BEHIND[behind]]
    sharding = draw(st.sampled_from(("none", "inside", "outside")))
    if sharding == "inside":
        options["shards"] = tuple(n * draw(st.integers(1, 2)) for n in chunks)
    elif sharding == "outside":
        options["serializer"] = ShardingCodec(
            chunk_shape=(1,) * ndim, codecs=[options["serializer"]]
        )
    return options, compressors, behind, sharding


def _regions(draw, shape):
    """A region as zarr takes it: slices with steps, and single elements that drop their axis."""
    parts = []
    for n in shape:
        start = draw(st.integers(0, n - 1))
        whole = slice(start, draw(st.integers(start + 1, n)), draw(st.sampled_from((1, 1, 2))))
        parts.append(draw(st.sampled_from((start, whole))))
    return tuple(parts)


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@given(st.data())
def test_any_array(data):
    options, compressors, behind, sharding = data.draw(arrays())
    # zarr 3.1.3 cannot leave out inner chunks of a shard that has other codecs behind it.
    with zarr.config.set({"array.write_empty_chunks": sharding == "outside"}):
        _check(data, options, compressors, behind, sharding)


def _check(data, options, compressors, behind, sharding):
    wkwdask.register_header("numbered", numbered_header)
    dtype = np.dtype(options["dtype"])
    plain = dtype.kind in "bc" or dtype.itemsize == 2
    voxels = (
        np.ones(options["shape"], dtype)
        if plain
        else voxel_array(dtype, options["shape"], data.draw(st.integers(0, 99)), "noise")
    )
    stored = Stored(compressors, fill=False, **options)
    stored.array[...] = voxels
    np.testing.assert_array_equal(stored.open()[...], voxels)

    region = _regions(data.draw, options["shape"])
    again = stored.open()
    again[region] = value = dtype.type(1)
    voxels[region] = value
    np.testing.assert_array_equal(stored.array[...], voxels)
    region = _regions(data.draw, options["shape"])
    np.testing.assert_array_equal(stored.open()[region], voxels[region])

    codec = compressors[-1 - len(BEHIND[behind])]
    if sharding != "inside" and codec.literal is not None:
        tail = 3 if behind == "footer" else 4 if behind == "crc32c" else 0
        for chunk in stored.chunks().values():
            found = (
                chunk[: codec.nbytes]
                if codec.at_start
                else chunk[len(chunk) - tail - codec.nbytes : len(chunk) - tail]
            )
            assert found == codec.literal


# ----------------------------------------------------------------------------- other processes

_OTHER = """
import sys
import zarr
assert "wkwdask" not in sys.modules
array = zarr.open_array(sys.argv[1])
print(array[:].sum())
array[int(sys.argv[2]) :: 2] = int(sys.argv[2]) + 7
if sys.argv[2] == "0":
    zarr.open_array(sys.argv[1] + "-acme")[1] = 9
try:
    zarr.open_array(sys.argv[1] + "-session")[0] = 1
except Exception as error:
    print(type(error).__name__, error)
"""


def _install_acme(folder):
    """Make what an installed package with a header leaves behind."""
    (folder / "acme.py").write_text("def header(encoded):\n    return b'acme%d' % len(encoded)\n")
    (folder / "acme-1.0.dist-info").mkdir(parents=True)
    (folder / "acme-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n"
    )
    (folder / "acme-1.0.dist-info" / "entry_points.txt").write_text(
        "[wkwdask.headers]\nacme = acme:header\n"
    )


def _create(path, count, *compressors, **options):
    array = zarr.create_array(
        path, shape=(count,), dtype="uint8", compressors=compressors, **options
    )
    array[:] = 3


def test_two_other_processes_that_never_import_wkwdask(tmp_path):
    """Entry points do it: both write every second chunk at the same time, with the right header of
    each chunk; headers of other packages are found too."""
    _install_acme(tmp_path)
    wkwdask.register_header("acme", lambda encoded: b"acme?")
    _create(
        tmp_path / "a",
        40,
        GzipCodec(level=1),
        wkwdask.offset_codec(8, header="n5"),
        wkwdask.pad_codec(padding=b"end", location="end", strict=True),
        chunks=(1,),
    )
    _create(
        tmp_path / "a-acme", 4, wkwdask.offset_codec(5, header="acme"), chunks=(2,), shards=(4,)
    )
    _create(
        tmp_path / "a-session",
        4,
        wkwdask.offset_codec(3, prefix_func=lambda _: b"abc"),
        chunks=(2,),
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _OTHER, str(tmp_path / "a"), str(n)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    for process in started:
        out, errors = process.communicate(timeout=360)
        assert errors == ""
        lines = out.splitlines()
        assert 120 <= int(lines[0]) <= 40 * 8  # whatever of the other was there
        assert lines[1].startswith(
            "UnsupportedError chunks of this array begin with the header 'session:"
        )
    assert zarr.open_array(tmp_path / "a")[:].tolist() == [7, 8] * 20
    for n in range(40):
        data = (tmp_path / "a" / "c" / str(n)).read_bytes()
        assert data[:10] == b"\0\0\0\1\0\0\0\1\x1f\x8b"
        assert data[-3:] == b"end"
    assert zarr.open_array(tmp_path / "a-acme")[:].tolist() == [3, 9, 3, 3]
    # one of two chunks of the shard was written again
    assert (tmp_path / "a-acme" / "c" / "0").read_bytes()[:14] == b"acme2\3\x09acme?\3\3"
    assert zarr.open_array(tmp_path / "a-session")[:].tolist() == [3] * 4


@pytest.mark.parametrize("shards", [None, (8, 8)])
def test_arrays_from_dask(tmp_path, shards):
    """Each task gets the array with its codecs, function and all; where zarr drops the function (in
    shards) writing fails, and a registered one is found."""
    import dask
    import dask.array as da

    wkwdask.register_header("numbered", numbered_header)
    array = zarr.create_array(
        tmp_path / "a",
        shape=(16, 16),
        chunks=(4, 4),
        shards=shards,
        dtype="int32",
        compressors=[ZstdCodec(level=1), wkwdask.offset_codec(80, header="numbered")],
    )
    voxels = np.arange(1, 257, dtype="int32").reshape(16, 16)
    with dask.config.set(scheduler="threads"):
        da.from_array(voxels, chunks=shards or (4, 4)).store(array, lock=False)
        np.testing.assert_array_equal(
            da.from_zarr(zarr.open_array(tmp_path / "a")).compute(), voxels
        )


def test_on_dask_workers(tmp_path):
    import distributed
    from support.local_cluster import local_cluster

    array = zarr.create_array(
        tmp_path / "a",
        shape=(8, 8),
        chunks=(4, 4),
        dtype="int32",
        compressors=[wkwdask.offset_codec(8, prefix_func=length_header)],
    )
    with local_cluster() as cluster, distributed.Client(cluster) as client:
        futures = [client.submit(write_and_open, array, start, pure=False) for start in (0, 4)]
        assert client.gather(futures) == [1, 5]
    assert zarr.open_array(tmp_path / "a")[:, 0].tolist() == [1] * 4 + [5] * 4
    assert (tmp_path / "a" / "c" / "1" / "1").read_bytes()[:8] == (64).to_bytes(8, "little")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_single_array_is_stored_again_in_place(tmp_path, zarr_format):
    """Other chunks, shards and compression: shape, type, names, attributes and values stay, as
    zarr-python reads them."""
    voxels = np.random.default_rng(0).integers(0, 99, (20, 31, 17)).astype(np.uint16)
    names = {"dimension_names": ["z", "y", "x"]} if zarr_format == 3 else {}
    array = zarr.create_array(
        tmp_path / "a",
        data=voxels,
        chunks=(8, 8, 8),
        zarr_format=zarr_format,
        attributes={"who": "me"},
        **names,
    )
    before = array.metadata.to_dict()
    options = {"shard_shape": (32, 16, 16)} if zarr_format == 3 else {}
    wkwdask.rechunk(f"zarr://{tmp_path}/a", chunk_shape=(16, 8, 8), compression="gzip", **options)
    found = zarr.open_array(tmp_path / "a", mode="r")
    np.testing.assert_array_equal(found[...], voxels)
    assert (found.chunks, found.shards) == ((8, 8, 16), (16, 16, 32) if zarr_format == 3 else None)
    after = found.metadata.to_dict()
    assert [after.get(name) for name in ("shape", "attributes", "dimension_names")] == [
        before.get(name) for name in ("shape", "attributes", "dimension_names")
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(UnsupportedError, match="is a single Zarr array, and levels need an image"):
        wkwdask.build_pyramid(f"zarr://{tmp_path}/a", mags=["2"], method="max")


def test_a_single_array_keeps_its_axes_in_place(tmp_path):
    voxels = np.random.default_rng(5).integers(1, 99, (9, 10, 11), np.uint8)
    zarr.create_array(
        tmp_path / "a", data=voxels, chunks=(8, 8, 8), dimension_names=["x", "y", "z"]
    )
    wkwdask.rechunk(f"zarr://{tmp_path}/a", chunk_shape=(8, 4, 2), shard_shape=(8, 8, 8))
    found = zarr.open_array(tmp_path / "a", mode="r")
    assert (found.chunks, found.shards, found.metadata.dimension_names) == (
        (8, 4, 2),
        (8, 8, 8),
        ("x", "y", "z"),
    )
    np.testing.assert_array_equal(found[...], voxels)


def test_copies_of_an_array_without_a_voxel_size_name_a_call_that_writes_them(tmp_path):
    voxels = np.arange(20 * 12 * 8, dtype="uint16").reshape(20, 12, 8)
    zarr.create_array(
        tmp_path / "a",
        shape=voxels.shape,
        dtype=voxels.dtype,
        chunks=(5, 6, 7),
        dimension_names=["x", "y", "z"],
    )[...] = voxels
    for verb in (wkwdask.copy, wkwdask.rechunk, wkwdask.compress):
        with pytest.raises(
            ValueError,
            match=(
                r"a: states no voxel size, which its copy as an image needs; convert\(\) with "
                r"voxel_size= writes it"
            ),
        ):
            verb(f"zarr://{tmp_path}/a", f"zarr://{tmp_path}/copy.ome.zarr")
    assert not (tmp_path / "copy.ome.zarr").exists()
    wkwdask.convert(
        f"zarr://{tmp_path}/a", f"zarr://{tmp_path}/copy.ome.zarr", voxel_size=(4, 4, 40)
    )
    np.testing.assert_array_equal(wkwdask.open(f"zarr://{tmp_path}/copy.ome.zarr")[0], voxels)
