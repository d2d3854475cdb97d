"""The codec ``wkw``: any part of any mag as numpy slices it, few bytes for small parts, damage, and
files that zarr writes."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wkwdask
from wkwdask.errors import CorruptError, FormatError, TruncatedError

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)

from zarr.registry import get_chunk_key_encoding_class, get_codec_class  # noqa: E402

from wkwdask.formats.as_zarr.wkw_codec import WkwCodec, enclosing_box  # noqa: E402
from wkwdask.formats.as_zarr.wkw_keys import WkwChunkKeyEncoding  # noqa: E402
from wkwdask.formats.zarr.documents import array_document  # noqa: E402

try:
    get_codec_class("wkw")
except KeyError:
    pytest.skip(
        "the package is not installed, so that zarr does not find its codecs",
        allow_module_level=True,
    )


def describe(folder, shape, dtype, channels, block_len, file_len, compression="lz4hc"):
    """Put a ``zarr.json`` beside the files of a mag."""
    edge = block_len * file_len
    codecs = [
        {"name": "wkw", "configuration": {"block_len": block_len, "compression": compression}}
    ]
    document = array_document(shape, channels, np.dtype(dtype), (edge,) * 3, codecs, {}) | {
        "chunk_key_encoding": {"name": "wkw"}
    }
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/zarr.json", "w") as file:
        json.dump(document, file)


def mag_of(
    tmp_path,
    compression="lz4",
    dtype="uint16",
    channels=1,
    shape=(40, 33, 50),
    block_len=4,
    file_len=4,
):
    """Write a mag, and give its folder and its voxels, axes (c,) z, y, x."""
    array = np.random.default_rng(3).integers(0, 9, (channels, *shape)).astype(dtype)
    array[:, :16, :16, :16] = 0  # a file that is not there
    folder = str(tmp_path / "color" / "1")
    wkwdask.to_wkw(array, folder, compression=compression, block_len=block_len, file_len=file_len)
    describe(folder, shape, dtype, channels, block_len, file_len, compression)
    turned = array.transpose(0, 3, 2, 1)
    return folder, turned if channels > 1 else turned[0]


@pytest.fixture(scope="module")
def mags(tmp_path_factory):
    """Mags of all block types, with one channel or three."""
    made = {}
    for compression, channels in (("raw", 1), ("lz4", 3), ("lz4hc", 1)):
        folder, expected = mag_of(
            tmp_path_factory.mktemp(compression), compression, channels=channels
        )
        made[compression] = (zarr.open_array(folder, mode="r"), expected)
    return made


@st.composite
def selections(draw, shape):
    """Slices with steps in either direction, single places, and nothing at all."""
    chosen = []
    for length in shape:
        if draw(st.integers(0, 4)) == 0:
            chosen.append(draw(st.integers(-length, length - 1)))
            continue
        start, stop = sorted((draw(st.integers(0, length)), draw(st.integers(0, length))))
        chosen.append(slice(start, stop, draw(st.sampled_from([1, 1, 2, 7]))))
    return tuple(chosen)


@pytest.mark.parametrize("compression", ["raw", "lz4", "lz4hc"])
@given(data=st.data())
def test_parts(mags, compression, data):
    array, expected = mags[compression]
    assert isinstance(array.metadata.codecs[0], WkwCodec)
    where = data.draw(selections(expected.shape))
    np.testing.assert_array_equal(array[where], expected[where])


@given(data=st.data())
def test_enclosing_box(data):
    shape = (5, 6, 7)
    chunk = np.arange(210).reshape(shape)
    where = data.draw(selections(shape))
    where = tuple(
        slice(n.stop and n.stop - 1, None, -2) if isinstance(n, slice) and n.step == 7 else n
        for n in where
    )
    if data.draw(st.booleans()):
        where = np.ix_(
            *[data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4)) for n in shape]
        )
    box, rest = enclosing_box(where, shape)
    x, y, z = (slice(a, b) for a, b in zip(box.topleft, box.bottomright, strict=True))
    np.testing.assert_array_equal(chunk[z, y, x][rest], chunk[where])
    assert enclosing_box((Ellipsis, 2), shape)[0].size == (1, 6, 5)


@pytest.mark.parametrize("compression", ["raw", "lz4", "lz4hc"])
def test_places(mags, compression):
    array, expected = mags[compression]
    first = ([0, 2],) if expected.ndim == 4 else ()
    where = (*first, [1, 49, 17], slice(2, 30), [39, 0])
    np.testing.assert_array_equal(
        array.oindex[where],
        expected[np.ix_(*[range(*n.indices(33)) if isinstance(n, slice) else n for n in where])],
    )
    points = (
        *((np.array([0, 2]),) if first else ()),
        np.array([1, 48]),
        np.array([32, 2]),
        np.array([39, 20]),
    )
    np.testing.assert_array_equal(array.vindex[points], expected[points])
    np.testing.assert_array_equal(array[..., 5], expected[..., 5])


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint64", "float32"])
def test_types(tmp_path, dtype):
    folder, expected = mag_of(tmp_path, dtype=dtype, shape=(20, 17, 18))
    array = zarr.open_array(folder, mode="r")
    assert array.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(array[...], expected)


@pytest.mark.parametrize("compression", ["raw", "lz4", "lz4hc"])
@pytest.mark.parametrize("channels", [1, 3])
def test_files_that_zarr_writes(tmp_path, compression, channels):
    """They are WKW files: parts of chunks are merged, and zeros are not stored."""
    shape, folder = (21, 30, 17), str(tmp_path / "color" / "1")
    wkwdask.create(
        folder, ((0, 0, 0), shape), "int16", num_channels=channels, block_len=4, file_len=4
    )
    describe(folder, shape, "int16", channels, 4, 4, compression)
    array = zarr.open_array(folder, mode="r+")
    expected = np.zeros(array.shape, "int16")
    for seed, where in enumerate(
        [(slice(0, 17), slice(3, 29), slice(5, 9)), (slice(2, 4), slice(0, 30), 20)]
    ):
        values = np.random.default_rng(seed).integers(-5, 5, expected[(..., *where)].shape)
        array[(..., *where)] = values
        expected[(..., *where)] = values
    np.testing.assert_array_equal(
        wkwdask.open(folder)[(slice(None), *map(slice, shape))].compute(),
        expected.reshape(-1, *expected.shape[-3:]).transpose(0, 3, 2, 1),
    )
    array[...] = 0
    assert not list(tmp_path.rglob("*.wkw")) or {path.name for path in tmp_path.rglob("*.wkw")} == {
        "header.wkw"
    }


class Counting(zarr.storage.WrapperStore):
    """Counts what is read."""

    nbytes = 0

    async def get(self, key, prototype, byte_range=None):
        data = await self._store.get(key, prototype, byte_range)
        if data is not None and key.endswith(".wkw"):
            type(self).nbytes += len(data)
        return data


@pytest.mark.parametrize("compression", ["raw", "lz4"])
def test_small_parts_read_few_bytes(tmp_path, compression):
    folder, expected = mag_of(tmp_path, compression, shape=(64, 64, 64), block_len=4, file_len=16)
    array = zarr.open_array(Counting(zarr.storage.LocalStore(folder, read_only=True)), mode="r")
    whole = os.path.getsize(f"{folder}/z0/y0/x0.wkw")
    Counting.nbytes = 0
    np.testing.assert_array_equal(array[33:35, 17:19, 50:52], expected[33:35, 17:19, 50:52])
    assert Counting.nbytes < whole / 20
    Counting.nbytes = 0
    np.testing.assert_array_equal(array[...], expected)
    assert Counting.nbytes == whole


@pytest.mark.parametrize(
    "where",
    [
        (slice(33, 35), slice(17, 19), slice(50, 52)),
        (slice(2, 60), slice(10, 50), slice(1, 30)),
        (slice(None),) * 3,
    ],
)
def test_without_an_event_loop(tmp_path, where):
    folder, expected = mag_of(tmp_path, "lz4", shape=(64, 64, 64), block_len=4, file_len=16)
    array = zarr.open_array(folder, mode="r")

    class Getter:
        def get_sync(self, prototype, byte_range=None):
            with open(f"{folder}/z0/y0/x0.wkw", "rb") as file:
                raw = file.read()
            return prototype.buffer.from_bytes(
                raw if byte_range is None else raw[byte_range.start : byte_range.end]
            )

    prototype = zarr.core.buffer.default_buffer_prototype()
    (codec,) = array.metadata.codecs
    spec = SimpleNamespace(
        shape=(64, 64, 64), dtype=array.metadata.data_type, prototype=prototype, fill_value=0
    )
    np.testing.assert_array_equal(
        codec._decode_partial_sync(Getter(), where, spec).as_numpy_array(), expected[where]
    )


def test_the_fused_pipeline(tmp_path):
    if not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
        pytest.skip("this version of zarr has no fused pipeline")
    folder, expected = mag_of(tmp_path, "lz4", channels=3)
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}):
        array = zarr.open_array(folder, mode="r")
        for where in ((slice(None),) * 4, (1, slice(3, 20), 7, slice(5, 40, 3))):
            np.testing.assert_array_equal(array[where], expected[where])


def test_a_codec_around_it(tmp_path):
    """Behind a compressor whole chunks are decoded."""
    codecs = {"serializer": WkwCodec(block_len=4), "compressors": [zarr.codecs.GzipCodec()]}
    array = zarr.create_array(
        str(tmp_path / "a"), shape=(10, 20, 30), chunks=(16, 16, 16), dtype="float32", **codecs
    )
    values = np.random.default_rng(0).normal(size=array.shape).astype("float32")
    array[...] = values
    np.testing.assert_array_equal(
        zarr.open_array(str(tmp_path / "a"))[3:9, ::2, 7], values[3:9, ::2, 7]
    )
    inner = zarr.create_array(
        str(tmp_path / "b"),
        shape=(10, 20, 30),
        chunks=(8, 8, 8),
        shards=(16, 32, 32),
        dtype="float32",
        serializer=WkwCodec(4),
        compressors=None,
    )
    inner[...] = values
    np.testing.assert_array_equal(inner[1:9, 4, ::3], values[1:9, 4, ::3])
    assert pickle.loads(pickle.dumps(array)).metadata.codecs[0] == WkwCodec(block_len=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": (16, 16, 8)}, "must be cubes"),
        ({"chunks": (12, 12, 12)}, "file_len must be a power of two"),
        ({"chunks": (10, 10, 10)}, "must be cubes"),
        ({"chunks": (1, 16, 16, 16), "shape": (2, 9, 9, 9)}, "all 2 channels must be in one chunk"),
        ({"dtype": "complex64"}, "no voxel type for complex64"),
    ],
)
def test_arrays_that_are_no_wkw(tmp_path, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        zarr.create_array(
            str(tmp_path / "a"),
            **{"shape": (9, 9, 9), "chunks": (16, 16, 16), "dtype": "uint8", **options},
            serializer=WkwCodec(4),
            compressors=None,
        )


@pytest.mark.parametrize(
    "options", [{"block_len": 3}, {"block_len": "8"}, {"compression": "zip"}, {"level": 0}]
)
def test_bad_configurations(options):
    with pytest.raises(ValueError, match="must be"):
        WkwCodec(**options)


def test_keys():
    keys = WkwChunkKeyEncoding()
    assert get_chunk_key_encoding_class("wkw") is WkwChunkKeyEncoding
    assert keys.encode_chunk_key((0, 3, 2, 1)) == "z3/y2/x1.wkw"
    assert keys.decode_chunk_key("z3/y2/x1.wkw") == (3, 2, 1)
    assert keys.to_dict() == {"name": "wkw"}
    for coordinates in ((1, 3, 2, 1), (1, 2)):
        with pytest.raises(ValueError, match="all channels in one chunk"):
            keys.encode_chunk_key(coordinates)
    with pytest.raises(CorruptError, match="expected a key such as"):
        keys.decode_chunk_key("z3/y2")


# ----------------------------------------------------------------------------- damage


@pytest.mark.parametrize("where", [(slice(None),) * 3, (slice(5, 7), slice(4, 6), slice(9, 12))])
def test_damage(tmp_path, where):
    """Whole chunks and parts of them tell where."""
    folder = str(tmp_path / "color" / "1")
    wkwdask.to_wkw(
        np.random.default_rng(0).integers(0, 99, (16, 16, 16)).astype("uint16"),
        folder,
        compression="lz4",
        block_len=4,
        file_len=4,
    )
    describe(folder, (16, 16, 16), "uint16", 1, 4, 4)
    path, array = f"{folder}/z0/y0/x0.wkw", zarr.open_array(folder, mode="r")
    with open(path, "rb") as file:
        good = file.read()
    for changed, error, message in (
        (good[:300], FormatError, "ends at byte|expected"),
        (good[:10], TruncatedError, "byte|bytes"),
        (b"no" + good[2:], CorruptError, "byte 0"),
        (good[:6] + b"\x01" + good[7:], CorruptError, "byte 6: voxel type is uint8|voxel size"),
        (good[:16] + b"\xff" * 512 + good[528:], FormatError, "block"),
        (good[:528] + b"\xff" * (len(good) - 528), CorruptError, "block .* stored bytes"),
    ):
        with open(path, "wb") as file:
            file.write(changed)
        with pytest.raises(error, match=message):
            array[where]


@given(st.data())
def test_any_bytes(tmp_path_factory, data):
    """They decode, or raise a FormatError."""
    folder, _ = mag_of(
        tmp_path_factory.mktemp("damage"), shape=(32, 16, 16), block_len=4, file_len=4
    )
    path = f"{folder}/z0/y0/x1.wkw"
    with open(path, "rb") as file:
        raw = bytearray(file.read())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, min(len(raw) - 1, 700)))] = data.draw(st.integers(0, 255))
    with open(path, "wb") as file:
        file.write(raw[: data.draw(st.integers(0, len(raw)))])
    array = zarr.open_array(folder, mode="r")
    for where in ((slice(None),) * 3, (slice(3, 5), slice(0, 9), slice(20, 22))):
        try:
            array[where]
        except FormatError:
            pass
        except wkwdask.UnsupportedError:
            pass  # a version or type of the future


def test_a_fresh_interpreter_finds_it(tmp_path):
    """Without importing this package."""
    folder, expected = mag_of(tmp_path, shape=(20, 17, 18))
    code = (
        f"import sys, zarr; a = zarr.open_array({folder!r}, mode='r'); print(int(a[3:9].sum()), "
        "'wkwdask' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(int(expected[3:9].sum())), "True"]


@pytest.mark.parametrize("part", [slice(None), slice(17, 19)])
def test_errors_name_the_file(tmp_path, part):
    folder, _ = mag_of(tmp_path)
    path = f"{folder}/z1/y1/x1.wkw"
    os.truncate(path, 100)
    with pytest.raises(TruncatedError, match=f"^{path}: "):
        zarr.open_array(folder, mode="r")[part]
