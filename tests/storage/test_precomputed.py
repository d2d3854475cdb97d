"""Scales of precomputed volumes in local folders: voxels, absent and broken files, what is stored, and volumes that change."""

from __future__ import annotations

import bz2
import contextlib
import itertools
import lzma
import os
import pickle
import shutil
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from precomputed_volumes import labels, scale_entry, split_shard, write_info, write_scale, write_volume

from wkwdask import BoundingBox, Mag, Sharding
from wkwdask.errors import CorruptError, FormatError, MissingError, ReplacedError, TruncatedError
from wkwdask.formats.precomputed.gzip_stream import compress_gzip
from wkwdask.formats.precomputed.layer import is_precomputed, open_precomputed, open_precomputed_layer
from wkwdask.geometry.grid import cell_box, cells

ARRAY = labels()
SHARDINGS = {
    "alone": None,
    "identity": Sharding(1, 1, 4),
    "gzip": Sharding(2, 2, 2, minishard_index_encoding="gzip", data_encoding="gzip"),
    "murmur": Sharding(1, 2, 2, "murmurhash3_x86_128", "gzip", "raw"),
    "one shard": Sharding(3, 3, 0),
    "folded": Sharding(1, 1, 1),  # several blocks of chunks share a shard
}


@pytest.fixture(params=SHARDINGS)
def stored(request, tmp_path):
    """A folder with ARRAY, stored in one of the layouts, at a negative offset."""
    write_volume(tmp_path / "v", ARRAY, "segmentation", offset=(-5, 7, 100), sharding=SHARDINGS[request.param], encoding="compressed_segmentation")
    return tmp_path / "v"


def read(volume, box=None, order="C", **options):
    box = box or volume.box
    out = np.full((volume.num_channels, *box.size), 77, volume.dtype, order=order)
    count = volume.read_into(out, box.topleft, **options)
    return out, count


def test_voxels_and_places(stored):
    moved = open_precomputed(stored)
    assert moved.box == BoundingBox((-5, 7, 100), (50, 37, 23))
    volume = moved.volume
    assert (volume.origin, volume.box) == ((-5, 7, 100), BoundingBox((0, 0, 0), (50, 37, 23)))
    for order in "CF":
        found, count = read(volume, order=order)
        np.testing.assert_array_equal(found, ARRAY)
        assert count == sum(ARRAY[0, x : x + 16, y : y + 16, z : z + 8].any() for x in range(0, 50, 16) for y in range(0, 37, 16) for z in range(0, 23, 8))
    again = pickle.loads(pickle.dumps(moved))
    assert again == moved
    assert len(pickle.dumps(moved)) < 8000
    assert again.token == moved.token


def test_beyond_the_box_there_are_zeros(stored):
    volume = open_precomputed(stored).volume
    box = BoundingBox((-3, 30, 15), (60, 20, 20))
    expected = np.zeros((1, 60, 20, 20), np.uint64)
    expected[:, 3:53, :7, :8] = ARRAY[:, :, 30:, 15:]
    np.testing.assert_array_equal(read(volume, box)[0], expected)
    assert read(volume, BoundingBox((60, 0, 0), (5, 5, 5)))[1] == 0


def test_nothing_there(stored):
    """Without fill_zeros an array stays as it is where all is zero, and is complete where not."""
    volume = open_precomputed(stored).volume
    found, count = read(volume, BoundingBox((0, 0, 0), (32, 16, 23)), fill_zeros=False)
    assert count == 0
    assert read(volume, BoundingBox((0, 0, 0), (32, 16, 23)))[0].max() == 0
    found, count = read(volume, BoundingBox((0, 0, 0), (50, 37, 23)), fill_zeros=False)
    assert count
    np.testing.assert_array_equal(found, ARRAY)


@given(st.data())
def test_any_box(tmp_path_factory, data):
    """Any box of any geometry, beside the array in memory."""
    size = data.draw(st.tuples(*[st.integers(1, 40)] * 3))
    chunk = data.draw(st.tuples(*[st.integers(1, 20)] * 3))
    sharding = data.draw(st.sampled_from([None, Sharding(2, 1, 12), Sharding(1, 1, 2, "murmurhash3_x86_128", "raw", "gzip")]))
    if size[0] * size[1] * size[2] // (chunk[0] * chunk[1] * chunk[2]) > 300:
        chunk = tuple(max(edge, 8) for edge in chunk)
    array = labels(size, np.uint16, data.draw(st.integers(0, 9)))
    array = np.concatenate([array, array // 2])
    folder = tmp_path_factory.mktemp("any")
    write_volume(folder, array, offset=data.draw(st.tuples(*[st.integers(-50, 50)] * 3)), chunk=chunk, sharding=sharding)
    volume = open_precomputed(folder).volume
    first = data.draw(st.tuples(*[st.integers(-3, n) for n in size]))
    shape = data.draw(st.tuples(*[st.integers(1, n + 6) for n in size]))
    channel = data.draw(st.integers(0, 1))
    out = np.full((2 - channel, *shape), 9, np.uint16, order=data.draw(st.sampled_from("CF")))
    volume.read_into(out, first, channel)
    padded = np.pad(array, [(0, 0)] + [(50, 50)] * 3)
    part = tuple(slice(a + 50, a + 50 + n) for a, n in zip(first, shape, strict=True))
    np.testing.assert_array_equal(out, padded[(slice(channel, 2), *part)])
    cell = data.draw(st.tuples(*[st.integers(1, 30)] * 3))
    occupied = volume.occupied(cell)
    for index, found in zip(cells(volume.box, cell), occupied.transpose(2, 1, 0).ravel(), strict=True):
        box = cell_box(index, cell, volume.box).intersection(volume.box)
        assert found or not array[(slice(None), *(slice(a, b) for a, b in zip(box.topleft, box.bottomright, strict=True)))].any()
    states = volume.stored_states()
    np.testing.assert_array_equal(states, volume.shard_states(volume.box))
    assert {tuple(row[:3]) for row in states.tolist()} == {index for index in cells(volume.box, volume.shard_shape) if volume.shard_exists(index)}
    assert states[:, 3].sum() == sum(path.stat().st_size for path in (folder / "4_4_40").iterdir())


def test_a_part_counts(stored):
    volume = open_precomputed(stored).volume.cropped(BoundingBox((20, 3, 9), (20, 30, 10)))
    assert volume.box.topleft == (20, 3, 9)
    assert volume.occupied((8, 8, 8)).shape == (3, 5, 2)
    np.testing.assert_array_equal(read(volume)[0], ARRAY[:, 20:40, 3:33, 9:19])
    assert {tuple(row[:3]) for row in volume.stored_states().tolist()} <= set(cells(volume.box, volume.shard_shape))


def test_states_notice_what_changes(stored):
    volume = open_precomputed(stored).volume
    before = volume.stored_states()
    path = max((stored / "4_4_40").iterdir())
    os.utime(path, ns=(5, 5))
    after = volume.stored_states()
    assert (before[:, :4] == after[:, :4]).all()
    assert (before[:, 4] != after[:, 4]).sum() == 1
    path.unlink()
    assert len(volume.stored_states()) < len(before) or volume.stored_states()[:, 3].sum() < before[:, 3].sum()


def _pack(suffix):
    if suffix in (".br", ".zstd"):
        codecs = pytest.importorskip("imagecodecs", reason="compresses the files")
        return codecs.brotli_encode if suffix == ".br" else codecs.zstd_encode
    return {".gz": compress_gzip, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix]


@pytest.mark.parametrize("suffix", [".gz", ".br", ".zstd", ".xz", ".bz2"])
def test_compressed_files(tmp_path, suffix):
    pack = _pack(suffix)
    info = write_info(tmp_path, [scale_entry()], "uint64", kind="segmentation")
    write_scale(tmp_path, info.scales[0], ARRAY, suffix, pack)
    np.testing.assert_array_equal(read(open_precomputed(tmp_path).volume)[0], ARRAY)
    path = max((tmp_path / "4_4_40").iterdir())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FormatError, match=path.name):
        read(open_precomputed(tmp_path).volume)
    path.write_bytes(pack(bytes(1 << 24)))
    with pytest.raises(FormatError, match=f"{path.name}: byte 0: (expected )?a .* stream of .* gives"):
        read(open_precomputed(tmp_path).volume)


@pytest.mark.parametrize("suffix", [".br", ".zstd"])
def test_a_stream_that_gives_far_too_much(tmp_path, suffix):
    """It does not take the memory that it asks for."""
    pytest.importorskip("compresso", reason="encodes the other chunks")
    write_volume(tmp_path, ARRAY, "segmentation", encoding="compresso")
    path = max((tmp_path / "4_4_40").iterdir())
    path.unlink()
    path.with_name(path.name + suffix).write_bytes(_pack(suffix)(bytes(1 << 28)))
    volume = open_precomputed(tmp_path).volume
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=path.name):
            read(volume)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


def test_files_that_do_not_say_that_they_are_compressed(tmp_path):
    """As a bucket is copied whose objects have Content-Encoding: gzip."""
    info = write_info(tmp_path, [scale_entry()], "uint64", kind="segmentation")
    write_scale(tmp_path, info.scales[0], ARRAY, "", compress_gzip)
    np.testing.assert_array_equal(read(open_precomputed(tmp_path).volume)[0], ARRAY)


def test_obsolete_shards(tmp_path):
    sharding = SHARDINGS["gzip"]
    write_volume(tmp_path, ARRAY, "segmentation", sharding=sharding)
    volume = open_precomputed(tmp_path).volume
    states = volume.stored_states()
    for path in sorted((tmp_path / "4_4_40").iterdir()):
        split_shard(path, sharding)
    np.testing.assert_array_equal(read(volume)[0], ARRAY)
    np.testing.assert_array_equal(volume.stored_states()[:, :4], states[:, :4])
    np.testing.assert_array_equal(volume.stored_states(), volume.shard_states(volume.box))
    path = max((tmp_path / "4_4_40").glob("*.data"))
    path.unlink()
    with pytest.raises(MissingError, match=rf"{path.name}.*though"):
        read(volume)


def test_shards_without_chunks_and_bytes_to_spare(tmp_path):
    """An empty minishard, and chunks with unused bytes between them."""
    write_volume(tmp_path, ARRAY[:, :16], "segmentation", sharding=Sharding(0, 6, 0))
    np.testing.assert_array_equal(read(open_precomputed(tmp_path).volume)[0], ARRAY[:, :16])


# ------------------------------------------------------------------------------------------------ absent, broken, replaced


def test_another_sharding_of_the_same_files(tmp_path):
    """Somebody corrects an info by hand: tables that were read by the wrong one do not count."""
    sharding = Sharding(1, 2, 6)
    write_volume(tmp_path, ARRAY, "segmentation", sharding=sharding)
    for wrong in (Sharding(1, 1, 7), Sharding(3, 0, 6)):
        write_info(tmp_path, [scale_entry(sharding=wrong)], "uint64", 1, "segmentation")
        with contextlib.suppress(FormatError):
            read(open_precomputed(tmp_path).volume)
        write_info(tmp_path, [scale_entry(sharding=sharding)], "uint64", 1, "segmentation")
        np.testing.assert_array_equal(read(open_precomputed(tmp_path).volume)[0], ARRAY)


def test_links_to_nowhere(stored):
    volume = open_precomputed(stored).volume
    path = max((stored / "4_4_40").iterdir())
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(MissingError, match=f"{path.name}: a symbolic link"):
        read(volume)
    os.rename(stored / "4_4_40", stored / "elsewhere")
    (stored / "4_4_40").symlink_to("nowhere")
    with pytest.raises(MissingError, match="4_4_40: a symbolic link"):
        read(volume)
    with pytest.raises(MissingError, match="symbolic link"):
        volume.occupied((8, 8, 8))


def test_no_regular_file(stored):
    path = max((stored / "4_4_40").iterdir())
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptError, match=f"{path.name}: not a regular file"):
        read(open_precomputed(stored).volume)


def test_the_volume_is_gone(stored):
    volume = open_precomputed(stored).volume
    os.rename(stored, f"{stored}.old")
    with pytest.raises(MissingError, match="the volume is gone"):
        read(volume)
    with pytest.raises(MissingError):
        volume.occupied((8, 8, 8))


@pytest.mark.parametrize("keep", [0, 1, 10, 40, -1])
def test_files_that_are_cut_off(stored, keep):
    path = max((stored / "4_4_40").iterdir(), key=lambda path: path.stat().st_size)
    raw = path.read_bytes()
    path.write_bytes(raw[:keep] if keep >= 0 else raw[:-1])
    with pytest.raises(FormatError, match=path.name) as caught:
        read(open_precomputed(stored).volume)
    assert "byte" in str(caught.value)


def test_errors_name_chunk_and_byte(tmp_path):
    write_volume(tmp_path, ARRAY, "segmentation")
    path = tmp_path / "4_4_40" / "32-48_16-32_8-16"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(TruncatedError, match=r"32-48_16-32_8-16: chunk \(2, 1, 1\): byte 0: a raw chunk of \(16, 16, 8\) voxels has 16384 bytes, found 16376"):
        read(open_precomputed(tmp_path).volume)
    path.write_bytes(bytes(30000))
    with pytest.raises(CorruptError, match="has 30000 bytes, expected at most 22528"):
        read(open_precomputed(tmp_path).volume)


@pytest.mark.parametrize("name", ["identity", "gzip", "murmur"])
def test_no_damage_gives_wrong_voxels_silently(tmp_path, name):
    """Whatever byte of the tables is damaged: an error, or chunks that are not found; gzip also guards the data."""
    sharding = SHARDINGS[name]
    write_volume(tmp_path, ARRAY, "segmentation", sharding=sharding)
    path = max((tmp_path / "4_4_40").iterdir(), key=lambda path: path.stat().st_size)
    raw = path.read_bytes()
    errors = []
    for place in itertools.chain(range(sharding.index_nbytes), range(len(raw) - 60, len(raw))):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x55]) + raw[place + 1 :])
        try:
            read(open_precomputed(tmp_path).volume)
        except FormatError as error:
            errors.append(str(error))
    assert len(errors) > 40
    assert all(path.name in error for error in errors)


def test_replaced_while_it_is_open(stored):
    volume = open_precomputed(stored).volume
    info = (stored / "info").read_text()
    (stored / "info").write_text(info + " ")
    np.testing.assert_array_equal(read(volume)[0], ARRAY)  # it says the same
    assert not volume.is_unchanged()
    assert volume.is_current()
    (stored / "info").write_text(
        info.replace(
            '"scales": [{', '"scales": [{"key": "other", "size": [5, 5, 5], "chunk_sizes": [[5, 5, 5]], "encoding": "raw", "resolution": [8, 8, 8]}, {'
        )
    )
    np.testing.assert_array_equal(read(volume)[0], ARRAY)  # another scale came
    (stored / "info").write_text(info.replace("[16, 16, 8]", "[16, 16, 16]"))
    with pytest.raises(ReplacedError, match="info describes another scale"):
        read(volume)
    assert not volume.is_current()


def test_chunks_of_another_shape_under_the_same_names(tmp_path):
    """As many voxels in each, all of them stored: only their folder tells."""
    array = np.arange(32**3, dtype=np.uint16).reshape(1, 32, 32, 32) + 1
    for name, chunk in (("v", (16, 16, 8)), ("new", (8, 16, 16))):
        write_volume(tmp_path / name, array, chunk=chunk, sharding=Sharding(1, 1, 3))
    volume = open_precomputed(tmp_path / "v").volume
    np.testing.assert_array_equal(read(volume)[0], array)
    shutil.rmtree(tmp_path / "v" / "4_4_40")
    os.rename(tmp_path / "new" / "4_4_40", tmp_path / "v" / "4_4_40")
    with pytest.raises(ReplacedError, match="was replaced"):
        read(volume)


def test_another_folder_in_its_place(stored):
    volume = open_precomputed(stored).volume
    os.rename(stored / "4_4_40", stored / "old")
    os.mkdir(stored / "4_4_40")
    with pytest.raises(ReplacedError, match="was replaced"):
        read(volume)


# ------------------------------------------------------------------------------------------------ scales, records, redirects


def three_scales(folder):
    entries = [
        scale_entry("a", (40, 40, 8), resolution=(4, 4, 40), chunk_sizes=[[16, 16, 8], [8, 8, 8]]),
        scale_entry("b", (20, 20, 8), resolution=(8.001, 8, 40), offset=(-3, 0, 1)),
        scale_entry("c", (14, 14, 8), resolution=(12, 12, 40)),
    ]
    return write_info(folder, entries)


def test_scales(tmp_path):
    info = three_scales(tmp_path)
    array = np.arange(20 * 20 * 8, dtype=np.uint8).reshape(1, 20, 20, 8)
    write_scale(tmp_path, info.scales[1], array)
    layer = open_precomputed_layer(tmp_path)
    assert list(layer.mags) == [Mag(1, 1, 1), Mag(2, 2, 1)]
    assert (layer.category, layer.voxel_size_nm, layer.name) == ("color", (4, 4, 40), tmp_path.name)
    assert open_precomputed(tmp_path).box == BoundingBox((-3, 0, 1), (20, 20, 8), Mag(2, 2, 1))  # the finest with files
    assert open_precomputed(tmp_path, "2-2-1") == open_precomputed(tmp_path, key="b") == open_precomputed(tmp_path / "b") == open_precomputed(tmp_path, "b")
    assert open_precomputed(tmp_path, "c").box == BoundingBox((0, 0, 0), (14, 14, 8))
    assert open_precomputed(tmp_path, 1).chunk_shape == (16, 16, 8)
    assert open_precomputed(tmp_path, 1, chunk_size=(8, 8, 8)).chunk_shape == (8, 8, 8)
    with pytest.raises(MissingError, match=r"no scale with key d; there are 'a' \(mag 1\), 'b' \(mag 2-2-1\), 'c'"):
        open_precomputed(tmp_path, "d")
    with pytest.raises(MissingError, match="no scale with mag 4"):
        open_precomputed(tmp_path, 4)
    with pytest.raises(ValueError, match="not 1; give the volume's folder"):
        open_precomputed(tmp_path / "b", 1)
    with pytest.raises(ValueError, match="8, 8, 8"):
        open_precomputed(tmp_path, 1, chunk_size=(8, 8, 4))


def test_two_chunk_sizes_side_by_side(tmp_path):
    entry = scale_entry("s", (48, 48, 8), chunk_sizes=[[16, 16, 8], [8, 8, 8]])
    info = write_info(tmp_path, [entry])
    first, second = (np.full((1, 48, 48, 8), n, np.uint8) for n in (1, 2))
    write_scale(tmp_path, info.scales[0], first)
    write_scale(tmp_path, info.scales[0].with_chunk_size((8, 8, 8)), second)
    assert read(open_precomputed(tmp_path))[0].max() == 1
    assert read(open_precomputed(tmp_path, chunk_size=(8, 8, 8)))[0].min() == 2


@pytest.mark.parametrize("key", ["scales/s0", "deep/er/s0", "a/../b", "./s0", "../elsewhere/s0"])
@pytest.mark.parametrize("sharding", ["alone", "gzip"])
def test_keys_that_are_paths(tmp_path, key, sharding):
    """Keys are relative to the volume, and may lead out of it; the path of a scale inside of it opens it."""
    write_volume(tmp_path / "v", ARRAY, "segmentation", key=key, sharding=SHARDINGS[sharding])
    for volume in (open_precomputed(tmp_path / "v"), open_precomputed(tmp_path / "v", key=key)):
        np.testing.assert_array_equal(read(volume.volume)[0], ARRAY)
    inside = not key.startswith("..")
    place = os.path.normpath(tmp_path / "v" / key)
    assert is_precomputed(place) is inside
    if inside:
        np.testing.assert_array_equal(read(open_precomputed(place).volume)[0], ARRAY)
        assert open_precomputed_layer(place).key == key
        assert not is_precomputed(os.path.dirname(place)) or os.path.dirname(place) == str(tmp_path / "v")


def test_redirects(tmp_path):
    write_volume(tmp_path / "v", ARRAY, "segmentation")
    for n, target in enumerate(["../v", f"file://{tmp_path}/r0", f"precomputed://{tmp_path}/r1"]):
        (tmp_path / f"r{n}").mkdir()
        (tmp_path / f"r{n}" / "info").write_text(f'{{"redirect": "{target}"}}')
    np.testing.assert_array_equal(read(open_precomputed(tmp_path / "r2"))[0], ARRAY)
    (tmp_path / "r0" / "info").write_text('{"redirect": "../r2"}')
    with pytest.raises(CorruptError, match="lead in a circle"):
        open_precomputed(tmp_path / "r0")
    for n in range(12):
        (tmp_path / f"s{n}").mkdir()
        (tmp_path / f"s{n}" / "info").write_text(f'{{"redirect": "../s{n + 1}"}}')
    with pytest.raises(CorruptError, match="more than 10 redirects"):
        open_precomputed(tmp_path / "s0")


def test_records_that_are_broken_or_absent(tmp_path):
    with pytest.raises(MissingError, match="no Neuroglancer precomputed volume"):
        open_precomputed(tmp_path)
    (tmp_path / "info").write_bytes(b'{"scales": \xff}')
    with pytest.raises(CorruptError, match="info: byte 11: no UTF-8"):
        open_precomputed(tmp_path)
    write_info(tmp_path, [scale_entry(encoding="compressed_segmentation")], "uint8")
    with pytest.raises(CorruptError, match="compressed_segmentation"):
        open_precomputed(tmp_path)
    write_info(tmp_path, [scale_entry("bad", size=(0, 1, 1)), scale_entry("good")])
    assert open_precomputed(tmp_path).name.endswith("good")
    with pytest.raises(CorruptError, match=r"scales\[0\].size"):
        open_precomputed(tmp_path, "bad")
