"""Headers by name: who knows a name, what a function gets, and what is refused."""

from __future__ import annotations

import pickle
import re
from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest

import wkwdask
from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.zarr.codecs import headers
from wkwdask.formats.zarr.codecs.headers import (
    ChunkLayout,
    Header,
    find_header,
    n5_header,
    register_header,
)

LAYOUT = ChunkLayout((4, 3, 2), np.dtype("uint16"), 8)


def length_header(encoded):
    return len(encoded).to_bytes(8, "little")


def shape_header(encoded, layout, *, mark=0):
    return bytes([len(encoded), *layout.shape, layout.dtype.itemsize, mark]).ljust(
        layout.header_nbytes, b"."
    )


def with_option(encoded, mark=b"a"):
    return mark * 8


@pytest.fixture(autouse=True)
def _own_names(monkeypatch):
    monkeypatch.setattr(headers, "_registered", {})


def test_registered_name():
    assert register_header("length", length_header) is length_header
    assert Header.named("length").make(b"abc", LAYOUT) == b"\3" + bytes(7)
    # a function that has a name is stored by it
    assert Header.of_function(length_header) == Header("length")
    assert wkwdask.register_header is register_header


def test_last_registration_counts():
    register_header("length", shape_header)
    register_header("length", length_header)
    assert Header.named("length").make(b"abc", LAYOUT) == b"\3" + bytes(7)


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        (length_header, {}, b"\3" + bytes(7)),
        (shape_header, {}, b"\3\4\3\2\2\0.."),  # two parameters without a default: the layout too
        (shape_header, {"mark": 7}, b"\3\4\3\2\2\7.."),
        (with_option, {}, b"aaaaaaaa"),  # a second parameter with a default is an option
        (lambda encoded: bytearray(8), {}, bytes(8)),
        (bytes(8).replace, {"_": 0}, None),
    ],
)
def test_what_a_function_gets(function, options, expected):
    header = Header.of_function(function, options)
    if expected is None:
        with pytest.raises(TypeError):
            header.make(b"abc", LAYOUT)
    else:
        assert header.make(b"abc", LAYOUT) == expected


def test_wrong_length_and_type():
    with pytest.raises(
        ValueError,
        match=re.escape("returned 3 bytes, expected 8 according to the metadata of the array"),
    ):
        Header.of_function(lambda encoded: encoded).make(b"abc", LAYOUT)
    with pytest.raises(TypeError, match="returned str, expected bytes"):
        Header.of_function(lambda encoded: "header").make(b"abc", LAYOUT)


def test_unknown_name():
    with pytest.raises(
        UnsupportedError,
        match=(
            r"begin with the header 'acme', which is not registered in this process; .* "
            r"wkwdask.register_header\('acme', function\)"
        ),
    ):
        Header.named("acme").make(b"abc", LAYOUT)


def test_function_of_a_session_has_no_name_later():
    """Its stored name cannot be taken for that of another header: not even that of a registered one
    of the same name."""
    header = Header.of_function(length_header)
    assert header.make(b"abc", LAYOUT) == b"\3" + bytes(7)
    stored = header.to_json()
    assert stored == "session:length_header"
    register_header("length_header", shape_header)
    with pytest.raises(
        UnsupportedError, match=r"a function without a name when the array was created"
    ):
        Header.from_json(stored).make(b"abc", LAYOUT)
    register_header(stored, length_header)  # said on purpose
    assert Header.from_json(stored).make(b"abc", LAYOUT) == b"\3" + bytes(7)


def test_own_headers_are_not_replaced_and_not_pickled():
    for name in ("tiff", "n5"):
        assert find_header(name) is not None
        assert Header.named(name).function is None
        with pytest.raises(ValueError, match=f"the header '{name}' is built into wkwdask"):
            register_header(name, length_header)


def test_refused_registrations():
    with pytest.raises(ValueError, match="a non-empty text"):
        register_header("", length_header)
    with pytest.raises(TypeError, match="a function of the encoded bytes"):
        register_header("acme", b"header")
    with pytest.raises(TypeError, match="a function of the encoded bytes"):
        Header.of_function(b"header")


def test_function_travels_with_a_pickle(monkeypatch):
    register_header("length", length_header)
    packed = pickle.dumps(Header.named("length", {}))
    monkeypatch.setattr(headers, "_registered", {})  # as in another process
    assert pickle.loads(packed).make(b"abc", LAYOUT) == b"\3" + bytes(7)


def test_entry_point_of_an_installed_package(monkeypatch):
    def listed(**given):
        assert given == {"group": "wkwdask.headers", "name": "acme"}
        return EntryPoints([EntryPoint("acme", f"{__name__}:length_header", "wkwdask.headers")])

    monkeypatch.setattr(headers, "entry_points", listed)
    monkeypatch.setattr(EntryPoint, "load", lambda self: length_header)
    assert Header.named("acme").make(b"abc", LAYOUT) == b"\3" + bytes(7)


@pytest.mark.parametrize(
    "value",
    [
        7,
        "",
        {},
        {"name": 7},
        {"name": ""},
        {"name": "a", "options": []},
        {"name": "a", "more": 1},
        ["tiff"],
    ],
)
def test_wrong_json(value):
    with pytest.raises(
        CorruptError, match="expected a name, or an object with 'name' and 'options'"
    ):
        Header.from_json(value)


@pytest.mark.parametrize("value", ["tiff", {"name": "tiff", "options": {"compression": "zlib"}}])
def test_json_and_back(value):
    assert Header.from_json(value).to_json() == value


def test_n5_by_hand():
    """The header in the proposal's third example, and one whose sizes differ: x first."""
    assert (
        n5_header(b"", ChunkLayout((64, 64), np.dtype("uint16"), 12))
        == b"\x00\x00\x00\x02\x00\x00\x00\x40\x00\x00\x00\x40"
    )
    assert n5_header(b"", ChunkLayout((1, 2, 3), np.dtype("uint8"), 16)) == bytes(
        [0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1]
    )
    with pytest.raises(ValueError, match="of 3 dimensions has 16 bytes, expected 12"):
        n5_header(b"", ChunkLayout((1, 2, 3), np.dtype("uint8"), 12))
