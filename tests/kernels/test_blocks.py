"""Batches of blocks: the compiled path, the path through python-lz4 and the plain reference of
``formats`` give the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import DTYPE_NAMES, VOXEL_KINDS, vectors, voxel_array

from wkwdask.errors import FormatError
from wkwdask.formats.wkw.file import decode_block, encode_block
from wkwdask.formats.wkw.header import BlockType, make_header
from wkwdask.kernels.blocks import batch as blocks
from wkwdask.kernels.blocks.batch import ZeroFill
from wkwdask.kernels.blocks.layout import OFFSET, SIZE, START, X, Z, cubes_table
from wkwdask.kernels.blocks.levels import AUTO_LEVEL, USUAL_LEVEL
from wkwdask.kernels.blocks.repeats import has_repeats

# blocks are moved as bits: one type for each size
ITEMSIZE_DTYPES = ("uint8", "int16", "float32", "uint64")
ORDERS = ("F", "C", "planar", "part", "interleaved channels")
PATHS = ("compiled", "python")
# block types in turn
LAYOUTS = [
    (dtype, order, 1 + (n + m) % 3)
    for n, dtype in enumerate(ITEMSIZE_DTYPES)
    for m, order in enumerate(ORDERS)
]


@pytest.fixture(params=PATHS)
def path(request, monkeypatch):
    """Run a test on both paths."""
    _take(request.param, monkeypatch)
    return request.param


def _take(path, monkeypatch):
    if path == "python":
        monkeypatch.setattr(blocks, "_compiled", lambda: None)
    elif blocks._compiled() is None:
        pytest.skip("python-lz4 does not export LZ4's functions here, or WKWDASK_LZ4=python is set")


def _array(shape, dtype, order):
    """Make an array of one memory order, filled with a value that a forgotten write leaves
    behind."""
    if order == "planar":  # x fastest, channel slowest
        array = np.empty((shape[0], *shape[:0:-1]), dtype).transpose(0, 3, 2, 1)
    elif order == "part":  # steps of a larger array between its rows
        array = np.full(tuple(n + 3 for n in shape), 88, dtype)[
            tuple(slice(1, n + 1) for n in shape)
        ]
    elif order == "interleaved channels":  # z fastest among voxels, the channel inside them
        array = np.empty((*shape[1:], shape[0]), dtype).transpose(3, 0, 1, 2)
    else:
        array = np.empty(shape, dtype, order=order)
    array[...] = 77
    return array


def _header(dtype, channels, block_len, block_type):
    return make_header(
        dtype, channels, block_len=block_len, file_len=1, block_type=BlockType(block_type)
    )


def _stored(voxels, corners, header):
    """Encode blocks by the reference, with bytes between them, and list them as a batch."""
    table = np.zeros((len(corners), 7), np.int64)
    memory = b""
    for n, (block, corner) in enumerate(zip(voxels, corners, strict=True)):
        raw = encode_block(block, header)
        memory += b"\xee" * (n % 3)
        table[n, [OFFSET, SIZE, START]] = 1000 + len(memory), len(raw), len(memory)
        table[n, X : Z + 1] = corner
        memory += raw
    return np.frombuffer(bytearray(memory), np.uint8), table


def _put(out, block, corner):
    """Copy what lies inside the array, voxel by voxel."""
    edge = block.shape[1]
    for at in np.ndindex(edge, edge, edge):
        place = tuple(c + a for c, a in zip(corner, at, strict=True))
        if all(0 <= p < n for p, n in zip(place, out.shape[1:], strict=True)):
            out[(slice(None), *place)] = block[(slice(None), *at)]


def _decode_case(
    dtype,
    channels,
    first_channel,
    taken,
    block_type,
    order,
    corners,
    seed,
    shape=(6, 9, 7),
    block_len=4,
):
    header = _header(dtype, channels, block_len, block_type)
    rng = np.random.default_rng(seed)
    voxels = [
        voxel_array(
            dtype,
            (channels, *(block_len,) * 3),
            int(rng.integers(1 << 30)),
            VOXEL_KINDS[int(rng.integers(4))],
        )
        for _ in corners
    ]
    source, table = _stored(voxels, corners, header)
    out = _array((taken, *shape), dtype, order)
    expected = np.array(out)
    for block, corner in zip(voxels, corners, strict=True):
        _put(expected, block[first_channel : first_channel + taken], corner)
    nonzero = sum(block.tobytes().strip(b"\0") != b"" for block in voxels)
    decoded = blocks.decode_into(
        source,
        table,
        out,
        block_len=block_len,
        num_channels=channels,
        first_channel=first_channel,
        block_type=block_type,
    )
    assert decoded == (nonzero, -1, 0)
    assert out.tobytes() == expected.tobytes()
    if order == "part":  # the array around it is untouched
        whole = np.full(out.base.shape, 88, out.dtype)
        inside = tuple(slice(1, n + 1) for n in out.shape)
        whole[inside] = out
        assert (
            (out.base == whole).all()
            if out.dtype.kind != "f"
            else np.array_equal(out.base, whole, equal_nan=True)
        )


# Corners whose blocks touch the array: inside, across each border, and with only their last or
# first voxel in it.
CORNERS = [
    (0, 0, 0),
    (1, 2, 3),
    (-1, 0, 4),
    (4, -3, -2),
    (-3, 8, 0),
    (5, 8, 6),
    (-3, -3, -3),
    (2, 5, 3),
]


@pytest.mark.parametrize(("dtype", "order", "block_type"), LAYOUTS)
def test_decode(path, dtype, order, block_type):
    for seed, (channels, first_channel, taken) in enumerate(
        [(1, 0, 1), (3, 0, 3), (3, 1, 1), (2, 1, 1), (3, 1, 2)]
    ):
        _decode_case(dtype, channels, first_channel, taken, block_type, order, CORNERS, seed)


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_decode_every_dtype(path, dtype):
    _decode_case(dtype, 2, 0, 2, 2, "C", CORNERS, 7)


@pytest.mark.parametrize("block_type", [1, 2, 3])
@pytest.mark.parametrize(
    "corner",
    [
        (6, 0, 0),
        (0, 9, 0),
        (0, 0, 7),
        (0, 0, 50),
        (-4, 0, 0),
        (0, -4, 0),
        (0, 0, -4),
        (-50, 50, -50),
        (9, 9, 9),
    ],
)
def test_blocks_wholly_outside_change_nothing(path, corner, block_type):
    for seed in range(4):
        _decode_case("uint16", 2, 0, 2, block_type, "C", [corner, (0, 0, 0)], seed)


@pytest.mark.parametrize("path_name", PATHS)
@given(st.data())
def test_decode_any_place(path_name, data):
    with pytest.MonkeyPatch.context() as monkeypatch:
        _take(path_name, monkeypatch)
        shape = data.draw(vectors(1, 9))
        block_len = data.draw(st.sampled_from([1, 2, 4, 8]))
        corner = st.tuples(*[st.integers(1 - block_len, n - 1) for n in shape])
        channels = data.draw(st.integers(1, 3))
        first = data.draw(st.integers(0, channels - 1))
        _decode_case(
            data.draw(st.sampled_from(ITEMSIZE_DTYPES)),
            channels,
            first,
            data.draw(st.integers(1, channels - first)),
            data.draw(st.sampled_from([1, 2, 3])),
            data.draw(st.sampled_from(ORDERS)),
            data.draw(st.lists(corner, min_size=1, max_size=4)),
            data.draw(st.integers(0, 1000)),
            shape,
            block_len,
        )


def test_large_blocks(path):
    """Blocks of the usual length, whose tiles the compiled path copies one by one."""
    for order in ("C", "F"):
        _decode_case(
            "uint8", 1, 0, 1, 2, order, [(0, 0, 0), (32, -5, 3), (17, 20, 33)], 1, (40, 37, 50), 32
        )


def _expected_block(array, corner, edge):
    block = np.zeros((array.shape[0], edge, edge, edge), array.dtype)
    for at in np.ndindex(edge, edge, edge):
        place = tuple(c + a for c, a in zip(corner, at, strict=True))
        if all(0 <= p < n for p, n in zip(place, array.shape[1:], strict=True)):
            block[(slice(None), *at)] = array[(slice(None), *place)]
    return block


def _encode_case(array, corners, block_type, level=5, store_zero=True, block_len=4):
    header = _header(array.dtype, array.shape[0], block_len, block_type)
    out = np.full(len(corners) * blocks.compress_bound(header.block_nbytes), 0xEE, np.uint8)
    found = blocks.encode_from(
        array,
        np.array(corners, np.int64),
        out,
        block_len=block_len,
        block_type=block_type,
        level=level,
        store_zero=store_zero,
    )
    parts = [_expected_block(array, corner, block_len) for corner in corners]
    is_zero = [not part.tobytes().strip(b"\0") for part in parts]
    assert found.nbytes == found.sizes.sum()
    ends = np.cumsum(found.sizes).tolist()
    for n, (part, zero, size, end) in enumerate(
        zip(parts, is_zero, found.sizes.tolist(), ends, strict=True)
    ):
        raw = out[end - size : end].tobytes()
        if zero and not store_zero:
            assert size == 0
            continue
        assert decode_block(raw, header, "out", n, end - size).tobytes(order="F") == part.astype(
            header.dtype
        ).tobytes(order="F")
        if block_type != 2 or zero:
            # LZ4_compress_default and python-lz4 find other matches in the same bytes; both are
            # right
            assert raw == encode_block(part, header, level)
    assert found.nonzero == len(corners) - sum(is_zero)


@pytest.mark.parametrize(("dtype", "order", "block_type"), LAYOUTS)
def test_encode(path, dtype, order, block_type):
    for channels, kind in [(1, "noise"), (3, "few"), (2, "zeros"), (3, "extremes")]:
        array = _array((channels, 6, 9, 7), dtype, order)
        array[...] = voxel_array(dtype, array.shape, channels, kind)
        _encode_case(array, CORNERS, block_type)
        _encode_case(array, CORNERS, block_type, store_zero=False)


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_encode_every_dtype_in_either_byte_order(path, dtype):
    array = voxel_array(dtype, (2, 6, 9, 7), 9, "noise")
    _encode_case(array, CORNERS, 2)
    _encode_case(array.astype(array.dtype.newbyteorder(">")), CORNERS, 2)


def test_encode_what_cannot_be_written(path):
    """Numba compiles other machine code for read-only memory, which users' arrays may have."""
    array = voxel_array("uint8", (2, 6, 9, 7), 9, "noise")
    array.flags.writeable = False
    _encode_case(array, CORNERS, 2)


def test_encode_negative_strides(path):
    _encode_case(voxel_array("uint16", (2, 6, 9, 7), 9, "noise")[:, ::-1, :, ::-1], CORNERS, 2)


@pytest.mark.parametrize("level", [1, 3, 9, 12])
def test_encode_levels(path, level):
    _encode_case(
        voxel_array("uint32", (1, 16, 16, 16), 2, "few"),
        [(0, 0, 0), (8, 8, 8)],
        3,
        level,
        block_len=8,
    )


def _encoded(array, corners, block_len, block_type, level):
    header = _header(array.dtype, array.shape[0], block_len, block_type)
    out = np.empty(len(corners) * blocks.compress_bound(header.block_nbytes), np.uint8)
    found = blocks.encode_from(
        array,
        np.array(corners, np.int64),
        out,
        block_len=block_len,
        block_type=block_type,
        level=level,
        store_zero=True,
    )
    return [part.tobytes() for part in np.split(out[: found.nbytes], np.cumsum(found.sizes)[:-1])]


def _textured(data, dtype, size):
    """Make noise of some width, with copies of a slab, runs of one value, and labels in it; blocks
    of it lie on both sides of the choice."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    largest = min(np.iinfo(dtype).max, (1 << 31) - 1)
    array = rng.integers(
        0, data.draw(st.sampled_from([2, 16, 40, 80, 200, largest])), (size, size, size)
    ).astype(dtype)
    if data.draw(st.booleans()):
        array[:, :, size - data.draw(st.integers(1, size // 2)) :] = array[
            :, :, : data.draw(st.integers(1, size // 2))
        ][:, :, :1]
    if data.draw(st.booleans()):
        depth = data.draw(st.integers(1, size // 2))
        array[:, :, -depth:] = array[:, :, :depth]
    if data.draw(st.booleans()):
        array[: data.draw(st.integers(1, size))] = rng.integers(0, 4)
    return np.asfortranarray(array[None])


@pytest.mark.parametrize("path_name", PATHS)
@given(st.data())
def test_auto_is_lz4_or_lz4hc_by_the_voxels_of_each_block(path_name, data):
    with pytest.MonkeyPatch.context() as monkeypatch:
        _take(path_name, monkeypatch)
        dtype, block_len = (
            data.draw(st.sampled_from(["uint8", "uint16", "int32", "uint64"])),
            data.draw(st.sampled_from([8, 16, 32])),
        )
        array = _textured(data, dtype, 32)
        corners = [
            (x, y, z)
            for z in range(0, 32, block_len)
            for y in range(0, 32, block_len)
            for x in range(0, 32, block_len)
        ]
        auto, fast, high = (
            _encoded(array, corners, block_len, *how)
            for how in ((3, AUTO_LEVEL), (2, 0), (3, USUAL_LEVEL))
        )
        header = _header(dtype, 1, block_len, 3)
        for n, (x, y, z) in enumerate(corners):
            block = array[:, x : x + block_len, y : y + block_len, z : z + block_len]
            chosen = has_repeats(block.tobytes(order="F"))
            assert auto[n] == (high if chosen or not block.any() else fast)[n]
            assert decode_block(auto[n], header, "out", n, 0).tobytes(order="F") == block.tobytes(
                order="F"
            )


def test_auto_chooses_both(path):
    """Noise has no repeats that LZ4HC finds and LZ4 does not, labels have many."""
    rng = np.random.default_rng(4)
    noise = np.asfortranarray(rng.integers(0, 256, (1, 32, 32, 32), np.uint8))
    labels = np.asfortranarray(
        np.kron(rng.integers(1, 50, (1, 8, 8, 8)), np.ones((1, 4, 4, 4))).astype(np.uint8)
    )
    assert _encoded(noise, [(0, 0, 0)], 32, 3, AUTO_LEVEL) == _encoded(noise, [(0, 0, 0)], 32, 2, 0)
    assert not has_repeats(noise.tobytes(order="F"))
    auto, fast, high = (
        _encoded(labels, [(0, 0, 0)], 32, *how)
        for how in ((3, AUTO_LEVEL), (2, 0), (3, USUAL_LEVEL))
    )
    assert auto == high != fast
    assert has_repeats(labels.tobytes(order="F"))


@pytest.mark.parametrize("width", [3, 5, 7, 8, 9, 10, 15, 30])
@pytest.mark.parametrize(
    ("dtype", "block_len"),
    [("uint8", 16), ("uint8", 32), ("uint8", 64), ("uint16", 32), ("float32", 32)],
)
def test_auto_costs_few_bytes(path, width, dtype, block_len):
    """Noise around a gradient, by its standard deviation: LZ4 is used only where LZ4HC is at most a
    few percent smaller."""
    rng = np.random.default_rng(width)
    array = np.asfortranarray(
        (rng.normal(128, width, (1, 64, 64, 64)) + np.arange(64) / 4).astype(dtype)
    )
    corners = [
        (x, y, z)
        for z in range(0, 64, block_len)
        for y in range(0, 64, block_len)
        for x in range(0, 64, block_len)
    ]
    auto, fast, high = (
        sum(map(len, _encoded(array, corners, block_len, *how)))
        for how in ((3, AUTO_LEVEL), (2, 0), (3, USUAL_LEVEL))
    )
    assert high <= auto <= high * 1.03
    if fast <= high * 1.01 and block_len > 16:
        assert auto == fast


@pytest.mark.parametrize("block_len", [1, 2, 8, 16, 32, 64])
@pytest.mark.parametrize("block_type", [2, 3])
def test_one_encoding_of_zeros(block_len, block_type):
    encodings = {
        blocks.zero_encoding(block_len**3, block_type, level).tobytes()
        for level in range(AUTO_LEVEL, 13)
    }
    assert encodings == {blocks.zero_encoding(block_len**3, 2, 0).tobytes()}


@pytest.mark.parametrize("store_zero", [False, True])
def test_encode_outside_is_zero(path, store_zero):
    array = voxel_array("uint8", (1, 4, 4, 4), 1, "noise")
    _encode_case(
        array,
        [(4, 0, 0), (-4, 0, 0), (0, 0, 0), (100, -100, 0), (0, 0, 3)],
        2,
        store_zero=store_zero,
    )


@pytest.mark.parametrize("path_name", PATHS)
@given(st.data())
def test_encode_any_place(path_name, data):
    with pytest.MonkeyPatch.context() as monkeypatch:
        _take(path_name, monkeypatch)
        dtype = data.draw(st.sampled_from(ITEMSIZE_DTYPES))
        array = _array(
            (data.draw(st.integers(1, 3)), *data.draw(vectors(1, 9))),
            dtype,
            data.draw(st.sampled_from(ORDERS)),
        )
        array[...] = voxel_array(
            dtype,
            array.shape,
            data.draw(st.integers(0, 1000)),
            data.draw(st.sampled_from(VOXEL_KINDS)),
        )
        corners = data.draw(st.lists(vectors(-8, 12), min_size=1, max_size=4))
        block_len = data.draw(st.sampled_from([1, 2, 4, 8]))
        _encode_case(
            array,
            corners,
            data.draw(st.sampled_from([1, 2, 3])),
            store_zero=data.draw(st.booleans()),
            block_len=block_len,
        )


@pytest.mark.parametrize("block_type", [1, 2, 3])
def test_bits_are_kept(path, block_type):
    """Negative zero is not zero, and NaNs keep their bits."""
    array = np.zeros((1, 4, 4, 4), np.float32)
    array[0, 1, 2, 3] = -0.0
    _encode_case(array, [(0, 0, 0)], block_type, store_zero=False)
    array.view(np.uint32)[...] = 0x7FC00001
    _encode_case(array, [(0, 0, 0)], block_type)
    _decode_case("float32", 1, 0, 1, block_type, "C", [(0, 0, 0)], 5)


def _one_block(raw, block_type, header):
    table = np.zeros((1, 7), np.int64)
    table[0, SIZE] = len(raw)
    out = np.zeros((header.num_channels, *(header.block_len,) * 3), header.dtype)
    return blocks.decode_into(
        np.frombuffer(bytearray(raw), np.uint8),
        table,
        out,
        block_len=header.block_len,
        num_channels=header.num_channels,
        block_type=block_type,
    ), out


@pytest.mark.parametrize(
    ("raw", "negative"),
    [
        (b"\xff\xff\xff", True),  # no LZ4
        (b"\x00", False),  # ends after nothing
        (b"\x10\x05", False),  # one byte
        (b"\x1f\x07\x01\x00\xff\xff\xff\x00\x50\x07\x07\x07\x07\x07", True),  # more than the block
    ],
)
def test_broken_block(path, raw, negative):
    decoded, _ = _one_block(raw, 2, _header("uint8", 1, 4, 2))
    assert decoded.broken == 0
    assert decoded.nonzero == 0
    assert (decoded.broken_nbytes < 0) == negative
    assert decoded.broken_nbytes < 64


def test_blocks_before_the_broken_one_are_counted(path):
    header = _header("uint8", 1, 4, 2)
    voxels = [np.full((1, 4, 4, 4), n, np.uint8) for n in (0, 1, 2, 3)]
    source, table = _stored(voxels, [(0, 0, 0)] * 4, header)
    source[table[2, START] :][: table[2, SIZE]] = 0xFF
    out = np.zeros((1, 4, 4, 4), np.uint8)
    decoded = blocks.decode_into(source, table, out, block_len=4, num_channels=1, block_type=2)
    assert (decoded.nonzero, decoded.broken) == (1, 2)


@pytest.mark.parametrize("path_name", PATHS)
@given(st.data())
def test_damaged_blocks(path_name, data):
    """A whole block decodes exactly where the reference decodes it, to the same voxels."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _take(path_name, monkeypatch)
        header = _header("uint16", 1, 4, 2)
        raw = bytearray(
            encode_block(
                voxel_array(
                    "uint16",
                    (1, 4, 4, 4),
                    data.draw(st.integers(0, 99)),
                    data.draw(st.sampled_from(VOXEL_KINDS)),
                ),
                header,
            )
        )
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        raw = bytes(raw[: data.draw(st.integers(1, len(raw)))])
        decoded, out = _one_block(raw, 2, header)
        try:
            expected = decode_block(raw, header, "x0.wkw", 0, 0)
        except FormatError:
            assert decoded.broken == 0
        else:
            assert decoded.broken == -1
            np.testing.assert_array_equal(out, expected)


OUTSIDE = [
    # start, size in a memory of 200 bytes, block type
    (-1, 64, 1),
    (137, 64, 1),
    (0, 201, 2),
    (200, 1, 2),
    (0, -1, 2),
    (-(1 << 62), 10, 2),
    (1 << 62, 1 << 62, 2),
    (10, (1 << 63) - 1, 2),
    ((1 << 63) - 1, 1, 2),
    (0, 63, 1),  # a raw block that is too short
]


@pytest.mark.parametrize(("start", "size", "block_type"), OUTSIDE)
def test_table_outside_the_memory(path, start, size, block_type):
    table = np.zeros((1, 7), np.int64)
    table[0, [START, SIZE]] = start, size
    out = np.full((1, 4, 4, 4), 77, np.uint8)
    with pytest.raises(ValueError, match="a stored block lies outside the memory that was read"):
        blocks.decode_into(
            np.zeros(200, np.uint8), table, out, block_len=4, num_channels=1, block_type=block_type
        )
    assert (out == 77).all()


@pytest.mark.parametrize(
    ("out", "channels", "first_channel"),
    [
        (np.zeros((2, 4, 4, 4), np.uint8), 1, 0),  # more channels than are stored
        (np.zeros((1, 4, 4, 4), np.uint8), 2, 2),
        (np.zeros((1, 4, 4, 4), np.uint8), 2, -1),
        (np.zeros((1, 4, 4, 4), np.uint8)[:, ::-1], 1, 0),
        # one voxel in many places
        (np.broadcast_to(np.zeros((1, 1, 4, 4), np.uint8), (1, 4, 4, 4)), 1, 0),
        (np.zeros((1, 4, 4, 4), ">u2"), 1, 0),
    ],
)
def test_arrays_that_cannot_be_filled(path, out, channels, first_channel):
    table = np.zeros((1, 7), np.int64)
    with pytest.raises(
        ValueError, match=f"cannot decode {channels} channels into an array of shape"
    ):
        blocks.decode_into(
            np.zeros(200, np.uint8),
            table,
            out,
            block_len=4,
            num_channels=channels,
            first_channel=first_channel,
            block_type=1,
        )


def test_memory_for_encoding_is_checked(path):
    array = np.ones((1, 4, 4, 4), np.uint8)
    bound = blocks.compress_bound(64)
    with pytest.raises(
        ValueError, match=f"2 blocks need {2 * bound} bytes to be encoded, got {2 * bound - 1}"
    ):
        blocks.encode_from(
            array,
            np.zeros((2, 3), np.int64),
            np.zeros(2 * bound - 1, np.uint8),
            block_len=4,
            block_type=2,
            level=5,
            store_zero=True,
        )


def test_nothing_to_do(path):
    empty = np.zeros((0, 7), np.int64)
    assert blocks.decode_into(
        np.zeros(0, np.uint8),
        empty,
        np.zeros((1, 4, 4, 4), np.uint8),
        block_len=4,
        num_channels=1,
        block_type=2,
    ) == (0, -1, 0)
    found = blocks.encode_from(
        np.zeros((1, 4, 4, 4), np.uint8),
        np.zeros((0, 3), np.int64),
        np.zeros(0, np.uint8),
        block_len=4,
        block_type=2,
        level=5,
        store_zero=True,
    )
    assert (found.sizes.size, found.nbytes, found.nonzero) == (0, 0, 0)


def test_compress_bound():
    """LZ4_COMPRESSBOUND of lz4.h, and noise stays within it."""
    assert [blocks.compress_bound(n) for n in (0, 1, 254, 255, 32768)] == [16, 17, 270, 272, 32912]
    header = _header("uint8", 1, 32, 2)
    assert len(
        encode_block(voxel_array("uint8", (1, 32, 32, 32), 1, "noise"), header)
    ) <= blocks.compress_bound(32768)


@pytest.mark.parametrize("block_type", [1, 2, 3])
def test_zero_encoding_is_that_of_the_reference(block_type):
    header = _header("uint16", 3, 8, block_type)
    assert blocks.zero_encoding(header.block_nbytes, block_type, 5).tobytes() == encode_block(
        np.zeros((3, 8, 8, 8), np.uint16), header, 5
    )


# ----------------------------------------------------------------------------- zeros


@st.composite
def _zero_streams(draw, nbytes):
    """LZ4 blocks of zeros in all forms that a decoder takes: any split into literals and matches,
    any offset, lengths that need more bytes."""
    raw, done = b"", 0
    while nbytes - done > 12 and draw(st.booleans()):
        literals = draw(st.integers(0 if done else 1, min(nbytes - 12 - done, 300)))
        if done + literals > nbytes - 12:
            break
        done += literals
        match = draw(st.integers(4, nbytes - 5 - done) | st.sampled_from([4, nbytes - 5 - done]))
        offset = draw(st.integers(1, done))
        raw += (
            _sequence(literals, match - 4)
            + bytes(literals)
            + offset.to_bytes(2, "little")
            + _more(match - 4)
        )
        done += match
    return raw + _sequence(nbytes - done, 0) + bytes(nbytes - done)


def _sequence(literals, match):
    return bytes([min(literals, 15) << 4 | min(match, 15)]) + _more(literals)


def _more(length):
    return b"" if length < 15 else b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])


@pytest.mark.parametrize("path_name", PATHS)
@given(st.data())
def test_any_encoding_of_zeros(path_name, data):
    with pytest.MonkeyPatch.context() as monkeypatch:
        _take(path_name, monkeypatch)
        header = _header("uint8", 1, data.draw(st.sampled_from([1, 2, 4, 8])), 2)
        raw = data.draw(_zero_streams(header.block_nbytes))
        assert not decode_block(raw, header, "x0.wkw", 0, 0).any()
        decoded, out = _one_block(raw, 2, header)
        assert decoded == (0, -1, 0)
        assert not out.any()


@pytest.mark.parametrize("path_name", PATHS)
@given(st.data())
def test_damaged_encodings_of_zeros(path_name, data):
    """They are taken for zeros only where the reference decodes them to zeros."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _take(path_name, monkeypatch)
        header = _header("uint8", 1, data.draw(st.sampled_from([2, 4, 8])), 2)
        raw = bytearray(data.draw(_zero_streams(header.block_nbytes)))
        if data.draw(st.booleans()):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        else:
            raw = raw[: data.draw(st.integers(1, len(raw)))] + bytes(data.draw(st.integers(0, 3)))
        decoded, out = _one_block(bytes(raw), 2, header)
        try:
            expected = decode_block(bytes(raw), header, "x0.wkw", 0, 0)
        except FormatError:
            assert decoded.broken == 0
        else:
            assert decoded == (int(expected.any()), -1, 0)
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("block_type", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 255, 256, 32767])
def test_a_single_voxel_is_seen(path, place, block_type):
    block = np.zeros((1, 32, 32, 32), np.uint8, order="F")
    block.reshape(-1, order="F")[place] = 1
    header = _header("uint8", 1, 32, block_type)
    decoded, out = _one_block(encode_block(block, header), block_type, header)
    assert decoded == (1, -1, 0)
    np.testing.assert_array_equal(out, block)
    _encode_case(block, [(0, 0, 0)], block_type, store_zero=False, block_len=32)


@pytest.mark.parametrize(("order", "block_type"), list(zip(ORDERS, (1, 2, 3, 1, 2), strict=True)))
@pytest.mark.parametrize("nonzero", [(), (0,), (3,), (7,), (2, 5), range(8)])
def test_array_without_zero_fill_is_complete_or_untouched(path, nonzero, order, block_type):
    header = _header("uint16", 2, 4, block_type)
    voxels = [np.full((2, 4, 4, 4), 5 * (n in nonzero), np.uint16) for n in range(8)]
    source, table = _stored(voxels, CORNERS, header)
    out = _array((2, 6, 9, 7), "uint16", order)
    expected = np.array(out)
    if nonzero:
        for block, corner in zip(voxels, CORNERS, strict=True):
            _put(expected, block, corner)
    decoded = blocks.decode_into(
        source, table, out, block_len=4, num_channels=2, block_type=block_type, fill_zeros=False
    )
    assert decoded == (len(nonzero), -1, 0)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("path_name", PATHS)
@given(st.data())
def test_clear(path_name, data):
    with pytest.MonkeyPatch.context() as monkeypatch:
        _take(path_name, monkeypatch)
        shape = (data.draw(st.integers(1, 3)), *data.draw(vectors(1, 9)))
        order = data.draw(st.sampled_from(ORDERS))
        out = _array(shape, data.draw(st.sampled_from(ITEMSIZE_DTYPES)), order)
        edge = data.draw(st.sampled_from([1, 2, 4, 16, 1 << 20]))
        corners = data.draw(st.lists(vectors(-12, 12), max_size=4))
        expected = np.array(out)
        for corner in corners:
            expected[(slice(None), *(slice(max(0, a), max(0, a + edge)) for a in corner))] = 0
        table = np.full((len(corners), 7), -1, np.int64)
        table[:, X:] = np.array(corners, np.int64).reshape(-1, 3)
        blocks.clear_into(table, edge, out)
        np.testing.assert_array_equal(out, expected)
        if order == "part":
            assert (out.base[0] == 88).all()


def test_clear_an_array_that_is_not_plain(path):
    whole = np.full((1, 4, 5, 6), 7, np.uint8)
    blocks.clear_into(cubes_table((1, 2, 3), 2), 2, whole[:, ::-1])
    expected = np.full((1, 4, 5, 6), 7, np.uint8)
    expected[:, 1:3, 2:4, 3:5] = 0
    np.testing.assert_array_equal(whole, expected)


@given(st.data())
def test_zeros_wait_for_something_else(data):
    out = np.full((1, 8, 8, 8), 7, np.uint8)
    at_once = data.draw(st.booleans())
    zeros = ZeroFill(out, at_once=at_once)
    expected = np.full_like(out, 7)
    seen = 0
    for corner in data.draw(st.lists(vectors(0, 3), unique=True, max_size=6)):
        corner = tuple(2 * n for n in corner)
        table, place = cubes_table(corner, 2), (slice(None), *(slice(n, n + 2) for n in corner))
        kind = data.draw(st.sampled_from(["absent", "zero block", "block"]))
        expected[place] = kind == "block"
        if kind == "absent":
            zeros.add(table, 2)
            continue
        if kind == "block" or zeros.at_once:  # as decode_into does
            out[place] = kind == "block"
        zeros.add_decoded(table, 2, int(kind == "block"))
        seen += kind == "block"
    np.testing.assert_array_equal(out, expected if seen or at_once else np.full_like(out, 7))
