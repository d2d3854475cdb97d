"""Many boxes at once equal a loop of ``read``, for every format and any number of threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import toy_format
from support.strategies import damaged, vectors
from verbs.forms import FORMS, needs

import wkwdask
from wkwdask.errors import BoundsError, MissingError
from wkwdask.formats import registry
from wkwdask.formats.opening import open_stored
from wkwdask.formats.precomputed.chunk import PrecomputedCodec
from wkwdask.formats.wkw import boxes as wkw_boxes
from wkwdask.formats.wkw.layout import WkwFiles
from wkwdask.store.paths import MEMORY
from wkwdask.streams import threads
from wkwdask.streams.boxes import read_boxes

OFFSET, SHAPE = (3, 0, 9), (43, 30, 37)
WKW, PRECOMPUTED, SHARDED, N5, ZARR_2, ZARR_3, TOY = (
    next(form for form in FORMS if form.name == name)
    for name in ("wkw", "precomputed", "precomputed-sharded", "n5", "ngff-0.4", "ngff-0.5", "toy")
)
VOLUMES = {
    "wkw-raw": (WKW, "uint8", 1, {"compression": "raw"}),
    "wkw-raw-3-channels": (WKW, "int16", 3, {"compression": "raw"}),
    "wkw-lz4": (WKW, "uint8", 1, {"compression": "lz4"}),
    "wkw-lz4-2-channels": (WKW, "float32", 2, {"compression": "lz4"}),
    "wkw-lz4hc": (WKW, "uint64", 1, {"compression": "lz4hc"}),
    "wkw-small-files": (WKW, "uint16", 1, {"file_len": 1, "compression": "lz4"}),
    "wkw-small-raw-files": (WKW, "uint16", 2, {"file_len": 1, "compression": "raw"}),
    # a page of the jump table has 32^3 blocks
    "wkw-pages": (WKW, "uint8", 1, {"block_len": 1, "file_len": 64, "compression": "lz4"}),
    "precomputed": (PRECOMPUTED, "uint8", 3, {}),
    "precomputed-memory": (PRECOMPUTED, "uint8", 1, {}),
    "precomputed-labels": (PRECOMPUTED, "uint32", 1, {"type": "segmentation"}),
    "precomputed-sharded": (SHARDED, "uint64", 1, {"type": "segmentation"}),
    "n5": (N5, "uint16", 2, {}),
    "n5-floats": (N5, "float32", 1, {}),
    "zarr-2": (ZARR_2, "int32", 2, {}),
    "zarr-3": (ZARR_3, "uint8", 1, {}),
    "toy": (TOY, "uint16", 1, {}),
}


@pytest.fixture(scope="module", autouse=True)
def _small_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_added", [toy_format.FORMAT])
        patch.setattr(threads, "_MIN_PART_NBYTES", 1)
        yield


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=needs(form)) for name, (form, *_) in VOLUMES.items()],
)
def url(request, tmp_path_factory):
    """Return a volume with chunks of zeros and with absent files."""
    form, dtype, channels, options = VOLUMES[request.param]
    random = np.random.default_rng(7)
    array = random.integers(0, 100, (channels, *SHAPE)).astype(dtype)
    array[:, 13:30] = 0
    array[:, :, 16:25, :9] = 0
    folder = (
        f"{MEMORY}boxes"
        if request.param.endswith("memory")
        else tmp_path_factory.mktemp(request.param)
    )
    url = form.url(folder, "image")
    form.save(array, url, OFFSET, **options)
    return url


@st.composite
def some_boxes(draw):
    """Boxes anywhere in the volume, of one shape or of several; empty ones, equal ones and
    overlapping ones are among them."""
    shape = draw(vectors(0, 30))
    boxes = []
    for low in draw(st.lists(vectors(0, 40), max_size=8)):
        size = draw(
            st.one_of(st.just(shape), vectors(0, 50)) if draw(st.booleans()) else st.just(shape)
        )
        low = [min(a, n - min(m, n)) for a, m, n in zip(low, size, SHAPE, strict=True)]
        high = [a + min(m, n - a) for a, m, n in zip(low, size, SHAPE, strict=True)]
        boxes.append(
            tuple(
                tuple(a + o for a, o in zip(corner, OFFSET, strict=True)) for corner in (low, high)
            )
        )
    return boxes


def _few(url, boxes):
    """Leave one small box where each voxel is a block."""
    if "wkw-pages" not in str(url):
        return boxes
    return [
        (low, tuple(min(a + 4, b) for a, b in zip(low, high, strict=True)))
        for low, high in boxes[:1]
    ]


@given(some_boxes(), st.sampled_from([1, 3]))
def test_many_boxes_equal_a_loop_of_read(url, boxes, num_threads):
    found = wkwdask.read_many(url, boxes, threads=num_threads)
    expected = [wkwdask.read(url, box) for box in boxes]
    assert isinstance(found, np.ndarray) == (len({part.shape for part in expected}) <= 1)
    assert len(found) == len(expected)
    for part, other in zip(found, expected, strict=True):
        assert (part.shape, part.dtype, part.flags.f_contiguous) == (other.shape, other.dtype, True)
        assert part.tobytes() == other.tobytes()


@given(some_boxes())
def test_threads_read_the_same_voxels(url, boxes):
    for box in boxes:
        assert (
            wkwdask.read(url, box, threads=3).tobytes()
            == wkwdask.read(url, box, threads=1).tobytes()
        )


@given(some_boxes(), vectors(-20, 20), st.sampled_from([1, 3]))
def test_parts_of_a_stored_array_equal_read_into(url, boxes, shift, num_threads):
    """Some of the channels, another origin, and boxes that reach beyond the array."""
    array = open_stored(url)[1].moved(shift)
    if array.num_channels > 1:
        array = replace(array, channels=(1, array.num_channels - 1))
    boxes = _few(url, boxes)
    corners = np.array([low for low, _ in boxes], np.int64).reshape(-1, 3) + shift - 6
    outs = [
        np.zeros((array.num_channels, *np.subtract(high, low) + 11), array.dtype, order="F")
        for low, high in boxes
    ]
    read_boxes(array, corners, outs, num_threads)
    for corner, out in zip(corners.tolist(), outs, strict=True):
        expected = np.empty_like(out)
        array.read_into(expected, tuple(corner))
        assert out.tobytes() == expected.tobytes()


def test_a_box_beyond_the_layer_is_an_error(url):
    with pytest.raises(BoundsError, match="reaches outside"):
        wkwdask.read_many(url, [((3, 0, 9), (4, 1, 10)), ((3, 0, 9), (4, 31, 10))])
    with pytest.raises(BoundsError, match="reaches outside"):
        wkwdask.read_many(url, [((3, 0, 9), (4, 1, 10)), ((3, 0, 9), (4, 1 << 70, 10))])


def test_boxes_in_all_notations(url):
    boxes = [((5, 6, 10), (8, 12, 20)), ((20, 1, 12), (23, 7, 22))]
    expected = wkwdask.read_many(url, boxes)
    assert expected.shape[2:] == (3, 6, 10)
    for same in (
        np.array(boxes),
        tuple(boxes),
        [wkwdask.BoundingBox.from_corners(*box, wkwdask.Mag(1, 1, 1)) for box in boxes],
    ):
        np.testing.assert_array_equal(wkwdask.read_many(url, same), expected)
    for no_box in ((1, 2, 3), 5, None):
        with pytest.raises(ValueError, match="pair of corners"):
            wkwdask.read_many(url, [no_box])
    for no_list in (None, 5, wkwdask.BoundingBox.from_corners(*boxes[0], wkwdask.Mag(1, 1, 1))):
        with pytest.raises(ValueError, match="boxes is a list of boxes"):
            wkwdask.read_many(url, no_list)


def test_a_chunk_is_decoded_once(tmp_path, monkeypatch):
    decoded, decode = [], PrecomputedCodec.decode

    def record(codec, data, shape, source, offset=0):
        decoded.append(source)
        return decode(codec, data, shape, source, offset)

    monkeypatch.setattr(PrecomputedCodec, "decode", record)
    url = PRECOMPUTED.url(tmp_path, "image")
    PRECOMPUTED.save(np.ones((1, 32, 32, 32), np.uint8), url, (0, 0, 0))
    decoded.clear()
    wkwdask.read_many(url, [((n, n, n), (n + 16, n + 16, n + 16)) for n in range(17)])
    # two cubes of 3^3 chunks, which share 2^3
    assert len(decoded) == len(set(decoded)) == 2 * 3**3 - 2**3


@given(some_boxes())
def test_without_compiled_lz4(url, boxes):
    boxes = _few(url, boxes)
    expected = [part.tobytes() for part in wkwdask.read_many(url, boxes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wkw_boxes, "is_compiled", lambda: False)
        assert [part.tobytes() for part in wkwdask.read_many(url, boxes)] == expected


@pytest.mark.parametrize("file_len", [1, 4])
def test_compiled_loops_read_valid_blocks(tmp_path, file_len, monkeypatch):
    if not wkw_boxes.is_compiled():
        pytest.skip("python-lz4 does not export LZ4's functions here, or WKWDASK_LZ4=python is set")
    voxels = np.random.default_rng(0).integers(0, 4, (40, 40, 40), np.uint8)
    wkwdask.write(tmp_path / "1", (0, 0, 0), voxels, block_len=8, file_len=file_len)
    monkeypatch.setattr(WkwFiles, "read_box", None)
    for part, n in zip(
        wkwdask.read_many(tmp_path / "1", [((n, 1, 2), (n + 20, 21, 22)) for n in (0, 3, 20)]),
        (0, 3, 20),
        strict=True,
    ):
        np.testing.assert_array_equal(part[0], voxels[n : n + 20, 1:21, 2:22])


def test_a_missing_mag_is_an_error(tmp_path):
    with pytest.raises(MissingError):
        wkwdask.read_many(tmp_path / "1", [((0, 0, 0), (1, 1, 1))])
    (tmp_path / "1").symlink_to(tmp_path / "gone")
    with pytest.raises(MissingError):
        wkwdask.read_many(tmp_path / "1", [((0, 0, 0), (1, 1, 1))] * 2)


def _outcome(read):
    try:
        return [part.tobytes() for part in read()]
    except wkwdask.WkwDaskError as error:
        return type(error), str(error)


@pytest.mark.parametrize("compression", ["raw", "lz4", "lz4hc"])
@pytest.mark.parametrize("file_len", [1, 2])
def test_damage_has_the_outcome_of_read(tmp_path, file_len, compression):
    """Any bytes decode to the voxels that ``read`` returns, or raise its error."""
    voxels = np.random.default_rng(0).integers(0, 4, (16, 16, 16), np.uint8)
    wkwdask.write(
        tmp_path / "1", (0, 0, 0), voxels, block_len=8, file_len=file_len, compression=compression
    )
    path = tmp_path / "1" / "z0" / "y0" / "x0.wkw"
    raw, box = path.read_bytes(), ((0, 0, 0), (16, 16, 16))
    found = set()

    @given(damaged(raw))
    def check(data):
        path.write_bytes(data)
        expected = _outcome(lambda: [wkwdask.read(tmp_path / "1", box)] * 2)
        assert _outcome(lambda: wkwdask.read_many(tmp_path / "1", [box, box])) == expected
        found.add(expected[0] if isinstance(expected[0], type) else bytes)

    check()
    assert len(found) > 1  # the strategy found broken files and valid ones


def test_a_broken_link_is_no_absent_file(tmp_path):
    wkwdask.write(
        tmp_path / "1", (0, 0, 0), np.ones((32, 32, 32), np.uint8), block_len=8, file_len=2
    )
    boxes = [((0, 0, 0), (20, 20, 20)), ((4, 4, 4), (24, 24, 24))]
    (tmp_path / "1" / "z1").rename(tmp_path / "moved")
    assert (wkwdask.read_many(tmp_path / "1", boxes)[..., 15:] == 0).all(axis=(0, 1, 2, 3)).any()
    (tmp_path / "1" / "z1").symlink_to(tmp_path / "gone")
    with pytest.raises(MissingError, match="a symbolic link to a missing folder"):
        wkwdask.read_many(tmp_path / "1", boxes)


def test_a_replaced_mag_is_opened_again(tmp_path):
    boxes = [((0, 0, 0), (20, 20, 20)), ((4, 4, 4), (24, 24, 24))]
    for value in (1, 2):
        array = np.full((32, 32, 32), value, np.uint8)
        wkwdask.to_wkw(
            array,
            tmp_path / "ds" / "color" / "1",
            voxel_size=(1, 1, 1),
            block_len=8 * value,
            file_len=2,
            existing="overwrite",
        )
        assert (wkwdask.read_many(tmp_path / "ds", boxes, layer="color", mag=1) == value).all()


@pytest.mark.needs("zarr")
@pytest.mark.parametrize("shards", [None, (16, 16, 16)])
def test_missing_chunks_have_the_fill_value(tmp_path, shards):
    import zarr

    array = zarr.create_array(
        tmp_path / "array",
        shape=(20, 20, 20),
        chunks=(8, 8, 8),
        shards=shards,
        dtype="int16",
        fill_value=7,
    )
    array[:8, :8, :8] = np.arange(512, dtype=np.int16).reshape(8, 8, 8)
    array[8:16, :8, :8] = array[:8, :8, 8:16] = 0
    boxes = [((n, 0, 0), (n + 11, 9, 9)) for n in (0, 1, 5, 9)]
    for part, (low, high) in zip(
        wkwdask.read_many(f"zarr://{tmp_path}/array", boxes), boxes, strict=True
    ):
        assert (part == 7).any()
        assert (part == 0).any()
        np.testing.assert_array_equal(part, wkwdask.read(f"zarr://{tmp_path}/array", (low, high)))
