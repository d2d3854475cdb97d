"""Scales of precomputed volumes in local folders: voxels, absent and broken files, what is stored,
and volumes that change."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import itertools
import lzma
import os
import shutil
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.precomputed_volumes import (
    labels,
    scale_entry,
    split_shard,
    write_info,
    write_scale,
    write_volume,
)

import wkwdask
from wkwdask import BoundingBox, Mag, Sharding
from wkwdask.errors import CorruptError, FormatError, MissingError, ReplacedError, TruncatedError
from wkwdask.formats.opening import open_stored
from wkwdask.formats.precomputed.naming import SUFFIXES

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
    write_volume(
        tmp_path / "v",
        ARRAY,
        "segmentation",
        offset=(-5, 7, 100),
        sharding=SHARDINGS[request.param],
        encoding="compressed_segmentation",
    )
    return tmp_path / "v"


def opened(folder, **options):
    """The whole scale; nothing is read before it is computed."""
    return wkwdask.open(folder, axes="cxyz", chunks=1024, **options)


def computed(array):
    return array.compute(scheduler="synchronous")


def scale_of(url, key=None):
    """What is said of a scale, the first by default."""
    return next(scale for scale in wkwdask.info(url).scales if key in (None, scale.key))


def test_voxels_and_places(stored):
    assert scale_of(stored).box == BoundingBox((-5, 7, 100), (50, 37, 23))
    np.testing.assert_array_equal(wkwdask.read(stored), ARRAY)
    np.testing.assert_array_equal(
        wkwdask.read(stored, ((10, 20, 105), (40, 40, 120))), ARRAY[:, 15:45, 13:33, 5:20]
    )
    np.testing.assert_array_equal(computed(opened(stored)), ARRAY)


@given(st.data())
def test_any_box(tmp_path_factory, data):
    """Any box of any geometry, beside the array in memory."""
    size = data.draw(st.tuples(*[st.integers(1, 40)] * 3))
    chunk = data.draw(st.tuples(*[st.integers(1, 20)] * 3))
    sharding = data.draw(
        st.sampled_from(
            [None, Sharding(2, 1, 12), Sharding(1, 1, 2, "murmurhash3_x86_128", "raw", "gzip")]
        )
    )
    if size[0] * size[1] * size[2] // (chunk[0] * chunk[1] * chunk[2]) > 300:
        chunk = tuple(max(edge, 8) for edge in chunk)
    array = labels(size, np.uint16, data.draw(st.integers(0, 9)))
    array = np.concatenate([array, array // 2])
    folder = tmp_path_factory.mktemp("any")
    offset = data.draw(st.tuples(*[st.integers(-50, 50)] * 3))
    write_volume(folder, array, offset=offset, chunk=chunk, sharding=sharding)
    low = data.draw(st.tuples(*[st.integers(0, n - 1) for n in size]))
    high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, size, strict=True)]
    part = (slice(None), *map(slice, low, high))
    np.testing.assert_array_equal(
        wkwdask.read(folder, [np.add(corner, offset).tolist() for corner in (low, high)]),
        array[part],
    )
    channel = data.draw(st.integers(0, 1))
    np.testing.assert_array_equal(
        computed(wkwdask.open(folder, channel=channel, axes="xyz", chunks=9)[part[1:]]),
        array[channel][part[1:]],
    )


def _pack(suffix):
    if suffix in (".br", ".zstd"):
        codecs = pytest.importorskip("imagecodecs", reason="compresses the files")
        return codecs.brotli_encode if suffix == ".br" else codecs.zstd_encode
    return {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix]


@pytest.mark.parametrize("suffix", [".gz", ".br", ".zstd", ".xz", ".bz2"])
def test_compressed_files(tmp_path, suffix):
    pack = _pack(suffix)
    info = write_info(tmp_path, [scale_entry()], "uint64", kind="segmentation")
    write_scale(tmp_path, info.scales[0], ARRAY, suffix, pack)
    np.testing.assert_array_equal(wkwdask.read(tmp_path), ARRAY)
    path = max((tmp_path / "4_4_40").iterdir())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FormatError, match=path.name):
        wkwdask.read(tmp_path)
    path.write_bytes(pack(bytes(1 << 24)))
    with pytest.raises(
        FormatError, match=f"{path.name}: byte 0: (expected )?a .* stream of .* decompresses to"
    ):
        wkwdask.read(tmp_path)


def test_states_of_chunks_with_several_suffixes(tmp_path):
    """Files asked for by name have the states that a listing has; that without a suffix comes
    first."""
    write_volume(tmp_path, ARRAY + 1, "segmentation")
    _, source = open_stored(tmp_path)
    ranges = source.files._files(source.box)
    paths = {
        cell[1]: tmp_path / scale_of(tmp_path).key / key
        for cell, key in source.naming.keys(ranges)
        if cell[2:] == (0, 0)
    }
    for n, suffix in ((1, ".gz"), (2, ".bz2")):
        paths[n].rename(f"{paths[n]}{suffix}")
    for suffix in (".gz", ".zstd"):
        paths[0].with_name(paths[0].name + suffix).write_bytes(b"a second file of this chunk")
    paths[3].unlink()
    by_name = dict(source.files._file_states(ranges))
    assert by_name == dict(source.files._listed_file_states(ranges))
    assert {n: by_name[0, n, 0, 0].variant for n in range(3)} == {
        0: 0,
        1: 1,
        2: SUFFIXES.index(".bz2"),
    }
    assert (0, 3, 0, 0) not in by_name
    assert by_name[0, 0, 1, 0].nbytes > 0


@pytest.mark.parametrize("suffix", [".br", ".zstd"])
def test_a_stream_that_gives_far_too_much(tmp_path, suffix):
    """It does not take the memory that it asks for."""
    pytest.importorskip("compresso", reason="encodes the other chunks")
    write_volume(tmp_path, ARRAY, "segmentation", encoding="compresso")
    path = max((tmp_path / "4_4_40").iterdir())
    path.unlink()
    path.with_name(path.name + suffix).write_bytes(_pack(suffix)(bytes(1 << 28)))
    wkwdask.info(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=path.name):
            wkwdask.read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


def test_files_that_do_not_say_that_they_are_compressed(tmp_path):
    """As a bucket is copied whose objects have Content-Encoding: gzip."""
    info = write_info(tmp_path, [scale_entry()], "uint64", kind="segmentation")
    write_scale(tmp_path, info.scales[0], ARRAY, "", gzip.compress)
    np.testing.assert_array_equal(wkwdask.read(tmp_path), ARRAY)


def test_obsolete_shards(tmp_path):
    sharding = SHARDINGS["gzip"]
    write_volume(tmp_path, ARRAY, "segmentation", sharding=sharding)
    array = opened(tmp_path)
    for path in sorted((tmp_path / "4_4_40").iterdir()):
        split_shard(path, sharding)
    np.testing.assert_array_equal(computed(array), ARRAY)
    path = max((tmp_path / "4_4_40").glob("*.data"))
    path.unlink()
    with pytest.raises(MissingError, match=rf"{path.name}.*though"):
        computed(array)


def test_shards_without_chunks_and_bytes_to_spare(tmp_path):
    """An empty minishard, and chunks with unused bytes between them."""
    write_volume(tmp_path, ARRAY[:, :16], "segmentation", sharding=Sharding(0, 6, 0))
    np.testing.assert_array_equal(wkwdask.read(tmp_path), ARRAY[:, :16])


# ------------------------------------------------------------------------------------------------
# absent, broken, replaced


def test_another_sharding_of_the_same_files(tmp_path):
    """Somebody corrects an info by hand: tables that were read by the wrong one do not count."""
    sharding = Sharding(1, 2, 6)
    write_volume(tmp_path, ARRAY, "segmentation", sharding=sharding)
    for n, wrong in enumerate((Sharding(1, 1, 7), Sharding(3, 0, 6))):
        write_info(tmp_path, [scale_entry(sharding=wrong)], "uint64", 1, "segmentation")
        # each has as many bytes, perhaps within a tick of the clock
        os.utime(tmp_path / "info", (n, n))
        with contextlib.suppress(FormatError):
            wkwdask.read(tmp_path)
        write_info(tmp_path, [scale_entry(sharding=sharding)], "uint64", 1, "segmentation")
        np.testing.assert_array_equal(wkwdask.read(tmp_path), ARRAY)


def test_links_to_nowhere(stored):
    volume = opened(stored)
    path = max((stored / "4_4_40").iterdir())
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(MissingError, match=f"{path.name}: a symbolic link"):
        computed(volume)
    os.rename(stored / "4_4_40", stored / "elsewhere")
    (stored / "4_4_40").symlink_to("nowhere")
    with pytest.raises(MissingError, match="4_4_40: a symbolic link"):
        computed(volume)
    with pytest.raises(MissingError, match="symbolic link"):
        wkwdask.build_pyramid(stored)


def test_no_regular_file(stored):
    path = max((stored / "4_4_40").iterdir())
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptError, match=f"{path.name}: not a regular file"):
        wkwdask.read(stored)


def test_the_volume_is_gone(stored):
    volume = opened(stored)
    os.rename(stored, f"{stored}.old")
    with pytest.raises(MissingError, match="the volume is gone"):
        computed(volume)


@pytest.mark.parametrize("keep", [0, 1, 10, 40, -1])
def test_files_that_are_cut_off(stored, keep):
    path = max((stored / "4_4_40").iterdir(), key=lambda path: path.stat().st_size)
    raw = path.read_bytes()
    path.write_bytes(raw[:keep] if keep >= 0 else raw[:-1])
    with pytest.raises(FormatError, match=path.name) as caught:
        wkwdask.read(stored)
    assert "byte" in str(caught.value)


def test_errors_name_chunk_and_byte(tmp_path):
    write_volume(tmp_path, ARRAY, "segmentation")
    path = tmp_path / "4_4_40" / "32-48_16-32_8-16"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(
        TruncatedError,
        match=(
            r"32-48_16-32_8-16: chunk \(2, 1, 1\): byte 0: a raw chunk of \(16, 16, 8\) voxels has "
            r"16384 bytes, found 16376"
        ),
    ):
        wkwdask.read(tmp_path)
    path.write_bytes(bytes(30000))
    with pytest.raises(CorruptError, match="has 30000 bytes, expected at most 22528"):
        wkwdask.read(tmp_path)


@pytest.mark.parametrize("name", ["identity", "gzip", "murmur"])
def test_no_damage_gives_wrong_voxels_silently(tmp_path, name):
    """Whatever byte of the tables is damaged: an error, or chunks that are not found; gzip also
    guards the data."""
    sharding = SHARDINGS[name]
    write_volume(tmp_path, ARRAY, "segmentation", sharding=sharding)
    path = max((tmp_path / "4_4_40").iterdir(), key=lambda path: path.stat().st_size)
    raw = path.read_bytes()
    errors = []
    for place in itertools.chain(range(sharding.index_nbytes), range(len(raw) - 60, len(raw))):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x55]) + raw[place + 1 :])
        try:
            wkwdask.read(tmp_path)
        except FormatError as error:
            errors.append(str(error))
    assert len(errors) > 40
    assert all(path.name in error for error in errors)


def test_replaced_while_it_is_open(stored):
    volume = opened(stored)
    info = (stored / "info").read_text()
    (stored / "info").write_text(info + " ")
    np.testing.assert_array_equal(computed(volume), ARRAY)  # it says the same
    (stored / "info").write_text(
        info.replace(
            '"scales": [{',
            (
                '"scales": [{"key": "other", "size": [5, 5, 5], "chunk_sizes": [[5, 5, 5]], '
                '"encoding": "raw", "resolution": [8, 8, 8]}, {'
            ),
        )
    )
    np.testing.assert_array_equal(computed(volume), ARRAY)  # another scale came
    (stored / "info").write_text(info.replace("[16, 16, 8]", "[16, 16, 16]"))
    os.utime(stored / "info", (1, 1))  # as many bytes as before, perhaps within a tick of the clock
    with pytest.raises(ReplacedError, match="info describes another scale"):
        computed(volume)


def test_chunks_of_another_shape_under_the_same_names(tmp_path):
    """As many voxels in each, all of them stored: only their folder tells."""
    array = np.arange(32**3, dtype=np.uint16).reshape(1, 32, 32, 32) + 1
    for name, chunk in (("v", (16, 16, 8)), ("new", (8, 16, 16))):
        write_volume(tmp_path / name, array, chunk=chunk, sharding=Sharding(1, 1, 3))
    volume = opened(tmp_path / "v")
    np.testing.assert_array_equal(computed(volume), array)
    shutil.rmtree(tmp_path / "v" / "4_4_40")
    os.rename(tmp_path / "new" / "4_4_40", tmp_path / "v" / "4_4_40")
    with pytest.raises(ReplacedError, match="was replaced"):
        computed(volume)


def test_another_folder_in_its_place(stored):
    volume = opened(stored)
    os.rename(stored / "4_4_40", stored / "old")
    os.mkdir(stored / "4_4_40")
    with pytest.raises(ReplacedError, match="was replaced"):
        computed(volume)


# ------------------------------------------------------------------------------------------------
# scales, records, redirects


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
    assert [scale.mag for scale in wkwdask.info(tmp_path).scales] == [
        Mag(1, 1, 1),
        Mag(2, 2, 1),
        None,
    ]
    assert scale_of(tmp_path, "b").box == BoundingBox((-3, 0, 1), (20, 20, 8), Mag(2, 2, 1))
    for url, options in (
        (tmp_path, {}),
        (tmp_path, {"mag": "2-2-1"}),
        (tmp_path / "b", {}),
        (tmp_path, {"mag": "b"}),
    ):
        # the finest with files
        np.testing.assert_array_equal(wkwdask.read(url, **options), array)
    assert wkwdask.open(tmp_path, mag="c").shape == (1, 14, 14, 8)
    with pytest.raises(
        MissingError, match=r"no mag or scale d; there are 'a' \(mag 1\), 'b' \(mag 2-2-1\), 'c'"
    ):
        wkwdask.open(tmp_path, mag="d")
    with pytest.raises(MissingError, match="no mag or scale 4"):
        wkwdask.open(tmp_path, mag=4)
    with pytest.raises(ValueError, match="is the scale 'b', not 1; give the folder above it"):
        wkwdask.open(tmp_path / "b", mag=1)


@pytest.mark.parametrize("key", ["scales/s0", "deep/er/s0", "a/../b", "./s0", "../elsewhere/s0"])
@pytest.mark.parametrize("sharding", ["alone", "gzip"])
def test_keys_that_are_paths(tmp_path, key, sharding):
    """Keys are relative to the volume, and may lead out of it; the path of a scale inside of it
    opens it."""
    write_volume(tmp_path / "v", ARRAY, "segmentation", key=key, sharding=SHARDINGS[sharding])
    for options in ({}, {"mag": key}):
        np.testing.assert_array_equal(wkwdask.read(tmp_path / "v", **options), ARRAY)
    inside = not key.startswith("..")
    place = os.path.normpath(tmp_path / "v" / key)
    if inside:
        np.testing.assert_array_equal(wkwdask.read(place), ARRAY)
    else:
        with pytest.raises(MissingError):
            wkwdask.read(place)


def test_redirects(tmp_path):
    write_volume(tmp_path / "v", ARRAY, "segmentation")
    for n, target in enumerate(["../v", f"file://{tmp_path}/r0", f"precomputed://{tmp_path}/r1"]):
        (tmp_path / f"r{n}").mkdir()
        (tmp_path / f"r{n}" / "info").write_text(f'{{"redirect": "{target}"}}')
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "r2"), ARRAY)
    (tmp_path / "r0" / "info").write_text('{"redirect": "../r2"}')
    with pytest.raises(CorruptError, match="lead in a circle"):
        wkwdask.open(tmp_path / "r0")
    for n in range(12):
        (tmp_path / f"s{n}").mkdir()
        (tmp_path / f"s{n}" / "info").write_text(f'{{"redirect": "../s{n + 1}"}}')
    with pytest.raises(CorruptError, match="more than 10 redirects"):
        wkwdask.open(tmp_path / "s0")


def test_records_that_are_broken_or_absent(tmp_path):
    with pytest.raises(MissingError, match="no Neuroglancer precomputed volume"):
        wkwdask.open(f"precomputed://{tmp_path}")
    (tmp_path / "info").write_bytes(b'{"scales": \xff}')
    with pytest.raises(CorruptError, match="info: byte 11: not UTF-8"):
        wkwdask.open(tmp_path)
    write_info(tmp_path, [scale_entry(encoding="compressed_segmentation")], "uint8")
    with pytest.raises(CorruptError, match="compressed_segmentation"):
        wkwdask.open(tmp_path)
    write_info(tmp_path, [scale_entry("bad", size=(0, 1, 1)), scale_entry("good")])
    assert wkwdask.open(tmp_path).shape == (1, 50, 37, 23)
    with pytest.raises(CorruptError, match=r"scales\[0\].size"):
        wkwdask.open(tmp_path, mag="bad")
