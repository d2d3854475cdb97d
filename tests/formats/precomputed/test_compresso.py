"""Compresso: a stream by hand, everything that its encoder writes, and streams that say what cannot
be."""

from __future__ import annotations

import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import damaged, vectors

from wkwdask.errors import CorruptError, FormatError, TruncatedError
from wkwdask.formats.precomputed import compresso

U16 = np.dtype("uint16")


def _stream(
    ids=(7, 9),
    values=(0, 2),
    locations=(),
    windows=(2,),
    shape=(3, 1, 1),
    version=0,
    itemsize=2,
    steps=(4, 4, 1),
    connectivity=4,
    tail=b"",
):
    """Write a stream of windows of 16 voxels."""
    head = struct.pack(
        "<4sBB3H3BQIQB",
        b"cpso",
        version,
        itemsize,
        *shape,
        *steps,
        len(ids),
        len(values),
        len(locations),
        connectivity,
    )
    words = (*ids, *values, *locations, *windows)
    return head + struct.pack(f"<{len(words)}H", *words) + tail


def _decode(data, shape=(3, 1, 1), dtype=U16):
    return compresso.decode(data, shape, dtype, "f", 50)


def test_by_hand():
    """Three voxels, the middle one on a border: it has the id of its left neighbour."""
    assert _decode(_stream()).ravel().tolist() == [7, 7, 9]
    # a run of one window without borders
    assert _decode(_stream(ids=(7,), values=(0,), windows=(3,))).ravel().tolist() == [7, 7, 7]


def test_borders_by_hand():
    """All voxels on borders: each says where its id is from, or what it is."""
    assert _decode(
        _stream(ids=(), values=(0, 7), locations=(12, 0, 6, 65535))
    ).ravel().tolist() == [5, 5, 65535]


@st.composite
def _segmentations(draw):
    """Noise, where all voxels are borders, and cubes; ids at the limit of their type, which are
    written in a way of their own."""
    dtype = np.dtype(draw(st.sampled_from(["uint8", "uint16", "uint32", "uint64"])))
    shape = draw(vectors(1, 17))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kinds = draw(st.sampled_from([1, 2, 5, 40]))
    edge = draw(st.sampled_from([1, 4]))
    cubes = np.kron(
        rng.integers(0, kinds, tuple(-(-n // edge) for n in shape)), np.ones((edge,) * 3, int)
    )
    ids = cubes[: shape[0], : shape[1], : shape[2]].astype(dtype)
    return ids + dtype.type(np.iinfo(dtype).max - 40) if draw(st.booleans()) else ids


FORMS = st.sampled_from(
    [
        {},
        {"steps": (8, 8, 1)},
        {"steps": (2, 2, 2), "random_access_z_index": False},
        {"steps": (3, 5, 2)},
        {"random_access_z_index": False},
        {"random_access_z_index": False, "connectivity": 6},
    ]
)


@given(_segmentations(), FORMS)
def test_all_that_is_written(array, form):
    package = pytest.importorskip("compresso", reason="compresso needs the extra precomputed")
    try:
        data = package.compress(np.asfortranarray(array), **form)
    except package.EncodeError:  # too many different windows for the form
        return
    np.testing.assert_array_equal(
        compresso.decode(data, array.shape, array.dtype, "f", 0)[0], array
    )


@given(_segmentations())
def test_there_and_back(array):
    pytest.importorskip("compresso", reason="compresso needs the extra precomputed")
    np.testing.assert_array_equal(
        compresso.decode(compresso.encode(array[None], "f"), array.shape, array.dtype, "f", 0)[0],
        array,
    )


def test_too_many_windows(monkeypatch):
    package = pytest.importorskip("compresso", reason="compresso needs the extra precomputed")

    def compress(array, steps):
        if steps != (8, 8, 1):
            raise package.EncodeError("too many windows")
        return package.compress(array, steps=steps)

    monkeypatch.setitem(
        sys.modules,
        "compresso",
        SimpleNamespace(EncodeError=package.EncodeError, compress=compress),
    )
    array = np.random.default_rng(0).integers(0, 3, (1, 20, 9, 2)).astype(np.uint32)
    np.testing.assert_array_equal(
        compresso.decode(compresso.encode(array, "f"), array.shape[1:], array.dtype, "f", 0), array
    )
    monkeypatch.setattr(compresso, "_WINDOW_SHAPES", ((4, 4, 1),))
    with pytest.raises(
        FormatError,
        match=r"f: compresso cannot encode a chunk of \(20, 9, 2\) voxels: .*too many windows",
    ):
        compresso.encode(array, "f")


WRONG = [
    # stream, what is said
    (b"", "no compresso stream: it starts with b''"),
    (b"ckl\0" + bytes(60), "no compresso stream"),
    (_stream()[:20], "a compresso stream is cut off in its header, after 20 bytes"),
    (_stream(version=2), "a compresso stream with an impossible header: version 2"),
    (_stream(itemsize=3), "a compresso stream with an impossible header: version 0, 3 bytes"),
    (_stream(steps=(8, 8, 2)), "a compresso stream with an impossible header"),
    (_stream(steps=(8, 0, 2)), "a compresso stream with an impossible header"),
    (_stream(connectivity=8), "a compresso stream with an impossible header"),
    (
        _stream(shape=(3, 2, 1)),
        (
            r"expected a compresso stream of \(3, 1, 1\) voxels of uint16, found \(3, 2, 1\) of 2 "
            r"bytes"
        ),
    ),
    (
        _stream(itemsize=4),
        (
            r"expected a compresso stream of \(3, 1, 1\) voxels of uint16, found \(3, 1, 1\) of 4 "
            r"bytes"
        ),
    ),
    (_stream(windows=()), "has windows that do not cover it"),
    (_stream(windows=(2, 2)), "has windows that do not cover it"),
    (_stream(windows=(7,)), "has windows that do not cover it"),
    (_stream(windows=(4,)), "has windows that do not cover it"),  # window number 2 of 2
    (_stream(values=(), windows=(3,)), "has windows that do not cover it"),
    (_stream(ids=(7,)), "has a number of ids that differs from its number of connected components"),
    (
        _stream(ids=(7, 9, 9)),
        "has a number of ids that differs from its number of connected components",
    ),
    (_stream(locations=(9,)), "has borders without ids"),
    (_stream(ids=(), values=(0, 7), locations=(12, 0)), "has borders without ids"),
    # the first voxel has no left neighbour
    (_stream(ids=(), values=(0, 7), locations=(0, 0, 0)), "has borders without ids"),
    # nor the last one a right one
    (_stream(ids=(), values=(0, 7), locations=(12, 0, 1)), "has borders without ids"),
    (_stream(ids=(), values=(0, 7), locations=(12, 0, 2)), "has borders without ids"),
    (_stream(ids=(), values=(0, 7), locations=(12, 0, 3)), "has borders without ids"),
    (_stream(ids=(), values=(0, 7), locations=(12, 0, 4)), "has borders without ids"),
    (_stream(ids=(), values=(0, 7), locations=(12, 0, 5)), "has borders without ids"),
    (_stream(ids=(), values=(0, 7), locations=(12, 0, 6)), "has borders without ids"),
]


@pytest.mark.parametrize(("data", "message"), WRONG)
def test_wrong(data, message):
    with pytest.raises(FormatError, match=f"f: byte 50: .*{message}"):
        _decode(data)


def test_lengths_that_are_not_there():
    for at in (15, 23, 27):  # of ids, windows and locations
        data = bytearray(_stream())
        data[at : at + 4] = b"\xff\xff\xff\xff"
        with pytest.raises(TruncatedError, match="shorter than its header says"):
            _decode(bytes(data))


@given(st.data())
def test_any_bytes(data):
    pytest.importorskip("compresso", reason="compresso needs the extra precomputed")
    array = data.draw(_segmentations())
    raw = data.draw(damaged(compresso.encode(array[None], "f")))
    try:
        found = compresso.decode(raw, array.shape, array.dtype, "f", 0)
    except (TruncatedError, CorruptError):
        return
    assert found.shape == (1, *array.shape)
