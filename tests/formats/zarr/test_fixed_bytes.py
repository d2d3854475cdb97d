"""The codecs offset and pad: what is stored, what is read of it, and every wrong configuration."""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("zarr", reason="zarr is not installed")
import zarr
from support.zarr_arrays import Stored
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec
from zarr.codecs.sharding import ShardingCodec

import wkwdask
from wkwdask.errors import CorruptError, FormatError, TruncatedError, UnsupportedError
from wkwdask.formats.zarr.codecs import headers, offset
from wkwdask.formats.zarr.codecs.offset import OffsetCodec
from wkwdask.formats.zarr.codecs.pad import PadCodec

CUSTOM = b"MY_CUSTOM_HEADER"


@pytest.fixture(autouse=True)
def _own_names(monkeypatch):
    monkeypatch.setattr(headers, "_registered", {})


def length_header(encoded):
    return len(encoded).to_bytes(8, "little")


# ----------------------------------------------------------------------------- what is stored


@pytest.mark.parametrize("prefix", [CUSTOM, base64.b64encode(CUSTOM).decode()])
def test_prefix_as_bytes_and_as_base64(prefix):
    stored = Stored([wkwdask.offset_codec(16, prefix=prefix)])
    assert stored.bytes() == CUSTOM + stored.voxels[:3, :5].tobytes()
    np.testing.assert_array_equal(stored.open()[...], stored.voxels)
    assert json.loads(stored.bytes("zarr.json"))["codecs"][1] == {
        "name": "offset", "configuration": {"offset": 16, "prefix": "TVlfQ1VTVE9NX0hFQURFUg=="}
    }  # fmt: skip


def test_zeros():
    stored = Stored([wkwdask.offset_codec(7)])
    assert stored.bytes() == bytes(7) + stored.voxels[:3, :5].tobytes()
    np.testing.assert_array_equal(stored.open()[...], stored.voxels)


def test_nothing():
    stored = Stored([wkwdask.offset_codec(0), wkwdask.pad_codec(0, "end")])
    assert stored.bytes() == stored.voxels[:3, :5].tobytes()
    np.testing.assert_array_equal(stored.open()[...], stored.voxels)


def test_header_and_footer():
    stored = Stored(
        [
            wkwdask.pad_codec(padding=b"head", location="start"),
            wkwdask.pad_codec(padding=b"foot!", location="end", strict=True),
        ]
    )
    assert stored.bytes() == b"head" + stored.voxels[:3, :5].tobytes() + b"foot!"
    np.testing.assert_array_equal(stored.open()[...], stored.voxels)
    assert json.loads(stored.bytes("zarr.json"))["codecs"][1:] == [
        {"name": "pad", "configuration": {"location": "start", "nbytes": 4, "padding": "aGVhZA=="}},
        {
            "name": "pad",
            "configuration": {
                "location": "end",
                "nbytes": 5,
                "padding": "Zm9vdCE=",
                "strict": True,
            },
        },
    ]


def test_in_the_index_of_a_shard():
    """The codec has a fixed size, which the codecs of an index must have."""
    index = ["bytes", "crc32c"]
    codec = ShardingCodec(
        chunk_shape=(3, 5),
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
        index_codecs=[
            {"name": index[0], "configuration": {"endian": "little"}},
            {"name": index[1]},
            wkwdask.offset_codec(prefix=CUSTOM),
        ],
    )
    stored = Stored(chunks=(6, 10), serializer=codec)
    assert stored.bytes()[-4 * 16 - 4 - 16 :][:16] == CUSTOM
    again = stored.open()
    np.testing.assert_array_equal(again[2:5, 3:7], stored.voxels[2:5, 3:7])
    np.testing.assert_array_equal(again[...], stored.voxels)


# ----------------------------------------------------------------------------- headers of each
# chunk


def test_function_of_a_session():
    stored = Stored([GzipCodec(level=1), wkwdask.offset_codec(offset=8, prefix_func=length_header)])
    data = stored.bytes()
    assert int.from_bytes(data[:8], "little") == len(data) - 8
    assert data[8:10] == b"\x1f\x8b"
    again = stored.open()
    np.testing.assert_array_equal(again[...], stored.voxels)  # reading needs no function
    before = stored.chunks()
    with pytest.raises(
        UnsupportedError, match=r"the header 'session:length_header' \(a function without a name"
    ):
        again[:2] = 1
    assert stored.chunks() == before  # and nothing was written


def test_function_stays_with_the_array():
    stored = Stored([wkwdask.offset_codec(offset=8, prefix_func=length_header)], fill=False)
    stored.array.resize((12, 10))
    stored.array.update_attributes({"a": 1})
    array = pickle.loads(pickle.dumps(stored.array))
    stored.array[...] = 3
    assert stored.bytes("c/3/1")[:8] == (30).to_bytes(8, "little")
    assert array.metadata.codecs[-1].header.function is length_header


def test_registered_function_is_found_again():
    wkwdask.register_header("length", length_header)
    stored = Stored([wkwdask.offset_codec(8, header="length")])
    again = stored.open()
    again[:2, :2] = 7
    stored.voxels[:2, :2] = 7
    assert stored.bytes() == (30).to_bytes(8, "little") + stored.voxels[:3, :5].tobytes()
    assert stored.open().metadata == stored.array.metadata


def test_registered_function_that_is_gone(monkeypatch):
    wkwdask.register_header("length", length_header)
    stored = Stored([wkwdask.offset_codec(8, prefix_func=length_header)])  # by its name too
    monkeypatch.setattr(headers, "_registered", {})
    again = stored.open()
    np.testing.assert_array_equal(again[...], stored.voxels)
    with pytest.raises(
        UnsupportedError, match="the header 'length', which is not registered in this process"
    ):
        again[:2] = 1


def test_session_function_in_a_shard_that_travels():
    """zarr pickles the codecs of shards as JSON, without functions: then writing is an error too,
    not zeros."""
    stored = Stored([wkwdask.offset_codec(8, prefix_func=length_header)], shards=(6, 10))
    moved = pickle.loads(pickle.dumps(stored.array.metadata.codecs))[0]
    assert moved.codecs[-1].header.function is None
    with pytest.raises(UnsupportedError, match="session:length_header"):
        moved.codecs[-1].header.make(b"", None)


def test_tiff_and_n5_by_name():
    stored = Stored([wkwdask.offset_codec(header="tiff", header_options={"compression": "none"})])
    assert stored.bytes()[:4] == b"II*\0"
    assert len(stored.bytes()) == 512 + 30
    n5 = Stored(
        [wkwdask.offset_codec(12, header="n5")],
        serializer={"name": "bytes", "configuration": {"endian": "big"}},
    )
    assert n5.bytes()[:12] == bytes([0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 3])
    with pytest.raises(ValueError, match="of 2 dimensions has 12 bytes"):
        Stored([wkwdask.offset_codec(16, header="n5")])


# ----------------------------------------------------------------------------- damage


def test_stored_chunk_is_shorter_than_the_header():
    stored = Stored([wkwdask.offset_codec(prefix=CUSTOM)])
    whole = stored.bytes()
    for n in range(len(whole)):
        stored.replace("c/0/0", whole[:n])
        with pytest.raises(
            ValueError,
            match=(
                r"a stored chunk of 3 x 5 uint16 ends at byte \d+, expected a header of 16 bytes, "
                r"and its data|reshape|divisor|size"
            ),
        ):
            stored.array[0, 0]
        if n < 16:
            with pytest.raises(
                TruncatedError, match=f"ends at byte {n}, expected a header of 16 bytes"
            ):
                stored.array[0, 0]


@pytest.mark.parametrize("location", ["start", "end"])
def test_strict_finds_other_bytes(location):
    stored = Stored([wkwdask.pad_codec(padding=CUSTOM, location=location, strict=True)])
    whole = stored.bytes()
    start = 0 if location == "start" else len(whole) - 16
    for n in range(start, start + 16):
        stored.replace("c/0/0", whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :])
        with pytest.raises(
            CorruptError,
            match=f"at byte {n} of its stored bytes, expected {whole[n : n + 1].hex()}",
        ):
            stored.open()[0, 0]


def test_not_strict_skips_whatever_is_there():
    stored = Stored([wkwdask.offset_codec(prefix=CUSTOM)])
    stored.replace("c/0/0", b"x" * 16 + stored.bytes()[16:])
    np.testing.assert_array_equal(stored.open()[...], stored.voxels)


def test_strict_with_a_header_of_each_chunk():
    stored = Stored(
        [GzipCodec(level=1), wkwdask.offset_codec(8, prefix_func=length_header, strict=True)]
    )
    np.testing.assert_array_equal(stored.array[...], stored.voxels)
    stored.replace("c/0/0", bytes(8) + stored.bytes()[8:])
    with pytest.raises(CorruptError, match="has 00 00 00 00 00 00 00 00 at byte 0"):
        stored.array[0, 0]


def test_strict_when_the_function_does_not_like_what_is_stored():
    tiff = Stored([wkwdask.offset_codec(header="tiff", strict=True)])
    tiff.replace("c/0/0", tiff.bytes()[:-1])
    with pytest.raises(
        CorruptError,
        match=(
            "a header of a stored chunk of 3 x 5 uint16 cannot be checked: a chunk has 29 encoded "
            "bytes, expected 30"
        ),
    ):
        tiff.array[0, 0]


# ----------------------------------------------------------------------------- configurations

WRONG = [
    ({}, "no 'offset'"),
    ({"offset": -1}, "'offset' is -1, expected a number of bytes, 0 or more"),
    ({"offset": True}, "'offset' is True"),
    ({"offset": 2.0}, "'offset' is 2.0"),
    ({"offset": "16"}, "'offset' is '16'"),
    ({"offset": 3, "prefix": "TVk="}, "'prefix' has 2 bytes, expected 3 as 'offset' says"),
    ({"offset": 2, "prefix": "TVk"}, "'prefix' is not base64"),  # no padding
    ({"offset": 2, "prefix": "TV\nk="}, "'prefix' is not base64"),  # a line break
    ({"offset": 2, "prefix": "TV-_"}, "'prefix' is not base64"),  # the alphabet of URLs
    ({"offset": 2, "prefix": "TVl="}, "its end holds bits or padding beyond its 2 bytes"),
    ({"offset": 2, "prefix": "TVk=TVk="}, "'prefix'"),
    ({"offset": 2, "prefix": "TVé="}, "'prefix' is not base64"),
    ({"offset": 2, "prefix": [77, 89]}, r"'prefix' is [77, 89], expected base64 text"),
    ({"offset": 2, "prefix": "TVk=", "header": "tiff"}, "'prefix' and 'header' are both given"),
    ({"offset": 2, "header": ""}, "'header' is '', expected a name"),
    ({"offset": 2, "strict": 1}, "'strict' is 1, expected true or false"),
    ({"offset": 2, "prefx": "TVk="}, "unknown key 'prefx'; it has offset, prefix, header, strict"),
    ("offset", "'configuration' is 'offset', expected an object with 'offset'"),
    (None, "'configuration' is None"),
]  # fmt: skip


@pytest.mark.parametrize(("configuration", "message"), WRONG)
def test_wrong_configuration(configuration, message):
    with pytest.raises(CorruptError, match=re.escape(message)):
        OffsetCodec.from_dict({"name": "offset", "configuration": configuration})


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"nbytes": 2}, "no 'location'"),
        ({"location": "start"}, "no 'nbytes'"),
        ({"location": "middle", "nbytes": 2}, "'location' is 'middle', expected 'start' or 'end'"),
        ({"location": ["start"], "nbytes": 2}, "'location' is ['start']"),
        ({"location": "end", "nbytes": 2, "padding": "TVk"}, "'padding' is not base64"),
    ],
)
def test_wrong_pad(configuration, message):
    with pytest.raises(CorruptError, match=re.escape(message)):
        PadCodec.from_dict({"name": "pad", "configuration": configuration})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner),
)
_KEYS = st.sampled_from(
    ("offset", "prefix", "header", "strict", "location", "nbytes", "padding", "name", "options")
)


@given(
    st.dictionaries(
        _KEYS,
        _JSON | st.sampled_from(("start", "tiff", 2, "TVk=", {"name": "tiff", "options": {}})),
    )
)
def test_any_configuration_is_read_or_refused(configuration):
    for codec in (OffsetCodec, PadCodec):
        with contextlib.suppress(CorruptError):
            entry = {"name": codec.name, "configuration": configuration}
            codec.from_dict(entry).to_dict()


def test_wrong_name():
    with pytest.raises(CorruptError, match="expected one of the name 'offset'"):
        OffsetCodec.from_dict({"name": "pad", "configuration": {"offset": 1}})


def test_wrong_metadata_do_not_open():
    stored = Stored([wkwdask.offset_codec(prefix=CUSTOM)])
    document = json.loads(stored.bytes("zarr.json"))
    document["codecs"][1]["configuration"]["offset"] = 15
    stored.replace("zarr.json", json.dumps(document).encode())
    with pytest.raises(FormatError, match="'prefix' has 16 bytes, expected 15"):
        stored.open()


def test_a_number_in_a_file_is_no_reason_to_allocate():
    stored = Stored([wkwdask.offset_codec(1 << 50)], fill=False)
    with pytest.raises(
        UnsupportedError, match="a header of 1125899906842624 zeros, expected at most"
    ):
        stored.array[0, 0] = 1
    assert offset._MAX_ZEROS < 1 << 30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "offset is missing, expected the length of the header in bytes"),
        ({"header": "n5"}, "offset is missing"),
        ({"offset": 4, "prefix": CUSTOM}, "'prefix' has 16 bytes, expected 4"),
        ({"offset": -4}, "'offset' is -4"),
        (
            {"offset": 16, "prefix": CUSTOM, "header": "tiff"},
            "got prefix and header, expected one of them",
        ),
        (
            {"offset": 16, "prefix": CUSTOM, "prefix_func": length_header},
            "got prefix and prefix_func, expected one of them",
        ),
        (
            {"offset": 16, "header_options": {"compression": "zlib"}},
            "header_options= without a header",
        ),
        ({"prefix": "TVk"}, "prefix is not base64"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        wkwdask.offset_codec(**options)


def test_wrong_types_of_arguments():
    with pytest.raises(TypeError, match="prefix is 16, expected bytes or base64 text"):
        # not sixteen zeros
        wkwdask.offset_codec(prefix=16)
    with pytest.raises(TypeError, match="integer"):
        wkwdask.offset_codec(2.5)
    assert wkwdask.offset_codec(np.int64(5)) == wkwdask.offset_codec(5)


def test_unknown_header_is_refused_at_once():
    with pytest.raises(UnsupportedError, match="'acme'"):
        wkwdask.offset_codec(4, header="acme")


@pytest.mark.parametrize(
    "codec",
    [
        wkwdask.offset_codec(prefix=CUSTOM, strict=True),
        wkwdask.offset_codec(5),
        wkwdask.offset_codec(header="tiff", header_options={"compression": "zstd"}),
        wkwdask.pad_codec(9, "end"),
        wkwdask.pad_codec(12, header="n5"),
    ],
)
def test_json_pickle_and_equality(codec):
    assert type(codec).from_dict(json.loads(json.dumps(codec.to_dict()))) == codec
    assert pickle.loads(pickle.dumps(codec)) == codec
    assert hash(codec) == hash(type(codec).from_dict(codec.to_dict()))
    assert codec != wkwdask.offset_codec(6)
    assert zarr.registry.get_codec_class(codec.name) is type(codec)


# ----------------------------------------------------------------------------- order


def test_compressor_behind_is_warned_of():
    with pytest.warns(
        wkwdask.errors.HeaderWarning,
        match="'offset' comes before 'gzip', which compresses its bytes too",
    ):
        Stored([wkwdask.offset_codec(prefix=CUSTOM), GzipCodec()], fill=False)
    with pytest.warns(wkwdask.errors.HeaderWarning, match="'pad' comes before 'gzip'"):
        stored = Stored(
            [wkwdask.pad_codec(padding=CUSTOM), GzipCodec()], shards=(6, 10), fill=False
        )
    with pytest.warns(wkwdask.errors.HeaderWarning, match="put 'pad' last"):
        stored.open()


def test_what_may_stand_behind():
    """None of these hides the header; a warning would be an error here."""
    stored = Stored(
        [
            GzipCodec(),
            wkwdask.offset_codec(prefix=CUSTOM),
            wkwdask.pad_codec(4, "end"),
            Crc32cCodec(),
        ]
    )
    assert stored.bytes().startswith(CUSTOM + b"\x1f\x8b")
    np.testing.assert_array_equal(stored.open()[...], stored.voxels)


@pytest.mark.parametrize(
    ("dtype", "endian", "options", "warned"),
    [
        (
            "uint16",
            "big",
            {},
            (
                "'bytes' stores big-endian chunks, and the header 'tiff' of the codec 'offset' "
                "states 'little'"
            ),
        ),
        ("float32", "little", {"byteorder": "big"}, "set header_options={'byteorder': 'little'}"),
        ("uint16", "big", {"byteorder": "big"}, ""),
        ("uint8", "big", {}, ""),  # has none
    ],
)
def test_byte_order_of_tiff_is_warned_of(tmp_path, dtype, endian, options, warned):
    def make():
        codec = wkwdask.offset_codec(header="tiff", header_options=options)
        return zarr.create_array(
            tmp_path / "a",
            shape=(8, 8),
            chunks=(4, 4),
            dtype=dtype,
            serializer=BytesCodec(endian=endian),
            compressors=[codec],
        )

    if not warned:
        make()  # a warning would be an error
        return
    with pytest.warns(wkwdask.errors.HeaderWarning, match=warned):
        make()
