"""Reads from the cache of decoded blocks equal reads without it, whatever happens to the files."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import urllib.request
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import toy_format
from support.strategies import vectors
from verbs.forms import needs

import wkwdask
from wkwdask.errors import CorruptError
from wkwdask.formats import registry
from wkwdask.formats.opening import open_stored
from wkwdask.runs import retries
from wkwdask.streams import block_cache as module
from wkwdask.streams import reading, threads
from wkwdask.streams.block_cache import block_cache

from .test_boxes import OFFSET, SHAPE, VOLUMES

LOCAL = {name: volume for name, volume in VOLUMES.items() if name != "precomputed-memory"}
AGE_NS = 20_000_000  # longer than a tick of the file systems on which tests run
SIZE = 64
BLOCK_NBYTES = 16**3


@pytest.fixture(autouse=True)
def _cache(monkeypatch):
    """An empty cache; files become old enough in 20 ms."""
    monkeypatch.setattr(module, "_LEAST_AGE_NS", AGE_NS)
    block_cache._clear()
    yield
    block_cache._clear()
    block_cache.limit_nbytes = 256 << 20


@pytest.fixture
def decoded(monkeypatch):
    """The shapes of the arrays that were decoded without the cache, and the numbers of blocks that
    were decoded into it."""
    plain, kept = [], []
    decode, decode_blocks = reading._decode, module._Call.decode

    def plain_decode(volume, out, *arguments):
        plain.append(out.shape[1:])
        decode(volume, out, *arguments)

    def block_decode(call, cells, num_threads):
        kept.append(len(cells))
        return decode_blocks(call, cells, num_threads)

    monkeypatch.setattr(reading, "_decode", plain_decode)
    monkeypatch.setattr(module._Call, "decode", block_decode)
    return plain, kept


def _settle():
    time.sleep(2 * AGE_NS / 1e9)


def _voxels(seed=0, shape=(SIZE,) * 3):
    return np.random.default_rng(seed).integers(1, 200, shape, np.uint8)


@pytest.fixture
def mag(tmp_path):
    """A mag of four blocks along each axis in eight files, raw so that files of other voxels have
    the same size."""
    path = tmp_path / "em" / "1"
    _write(path)
    _settle()
    return path


def _write(path, seed=0, **options):
    wkwdask.create_dataset(path.parent.parent, (4, 4, 4), existing="keep")
    wkwdask.to_wkw(
        _voxels(seed), path, **{"block_len": 16, "file_len": 2, "compression": "raw"} | options
    )


def _slice(axis, at, size=SIZE):
    low, high = [0] * 3, [size] * 3
    low[axis], high[axis] = at, at + 1
    return low, high


def _equals(path, box, seed=0):
    found, where = wkwdask.read(path, box), tuple(map(slice, *box))
    return np.array_equal(found[0], _voxels(seed)[where])


# ------------------------------------------------------------------------------------------------
# the same voxels


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=needs(form)) for name, (form, *_) in LOCAL.items()],
)
def volume(request, tmp_path_factory):
    """Return the URL and the voxels of a volume with chunks of zeros and with absent files."""
    form, dtype, channels, options = LOCAL[request.param]
    array = np.random.default_rng(7).integers(0, 100, (channels, *SHAPE)).astype(dtype)
    array[:, 13:30] = 0
    array[:, :, 16:25, :9] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_added", [toy_format.FORMAT])
        patch.setattr(threads, "_MIN_PART_NBYTES", 1)
        patch.setattr(module, "_TURNED_NBYTES", 5000)  # several batches
        url = form.url(tmp_path_factory.mktemp(request.param), "image")
        form.save(array, url, OFFSET, **options)
        _settle()
        yield url, array


@st.composite
def runs_of_reads(draw):
    """Draw boxes in runs of neighbours that touch the same chunks, mostly slices."""
    boxes = []
    for low, size in draw(st.lists(st.tuples(vectors(0, 40), vectors(1, 30)), max_size=4)):
        axis = draw(st.integers(0, 3))
        size = [1 if n == axis else m for n, m in enumerate(size)]
        for step in range(draw(st.integers(1, 4))):
            first = [a + step * (n == axis) for n, a in enumerate(low)]
            first = [min(a, n - min(m, n)) for a, m, n in zip(first, size, SHAPE, strict=True)]
            last = [min(a + m, n) for a, m, n in zip(first, size, SHAPE, strict=True)]
            boxes.append((first, last))
    return boxes


@given(
    runs_of_reads(),
    st.sampled_from([1, 3]),
    st.sampled_from(["cxyz", "czyx"]),
    st.sampled_from([1 << 10, 20 << 10, 1 << 20]),
)
def test_reads_equal_the_voxels(volume, boxes, num_threads, axes, nbytes):
    url, array = volume
    block_cache._clear()
    block_cache.limit_nbytes = nbytes
    opened = wkwdask.open(url, axes=axes)
    for low, high in boxes:
        expected = array[(slice(None), *map(slice, low, high))]
        corners = [[a + o for a, o in zip(corner, OFFSET, strict=True)] for corner in (low, high)]
        found = wkwdask.read(url, corners, threads=num_threads)
        assert found.flags.f_contiguous
        assert np.array_equal(found, expected)
        where = dict(zip("cxyz", (slice(None), *map(slice, low, high)), strict=True))
        part = opened[tuple(where[axis] for axis in axes)].compute(scheduler="synchronous")
        assert np.array_equal(part.transpose([axes.index(axis) for axis in "cxyz"]), expected)
        assert block_cache.nbytes <= nbytes


def test_every_layout_is_kept(volume, decoded):
    url, array = volume
    plain, kept = decoded
    x, y, z = OFFSET
    for step in range(3):
        box = (x, y, z + step), (x + SHAPE[0], y + SHAPE[1], z + step + 1)
        assert np.array_equal(wkwdask.read(url, box), array[..., step : step + 1])
    chunk = open_stored(url)[1].chunk_shape[2]
    if chunk > 1 and z % chunk < chunk - 2:
        assert (len(plain), len(kept)) == (1, 1)


@given(st.integers(0, 2), st.sampled_from([0, 1]), st.sampled_from([1, 2]))
def test_some_channels_equal_the_voxels(tmp_path_factory, axis, first, count):
    url, array = _channels(tmp_path_factory)
    stored = open_stored(url)[1]
    for at in (17, 18, 19, 18):
        low, high = _slice(axis, at, 40)
        shape = [count, *np.subtract(high, low)]
        out = np.empty(shape, np.uint8, order="F")
        reading.read_on_threads(stored, out, tuple(low), 1, first)
        where = slice(first, first + count), *map(slice, low, high)
        assert np.array_equal(out, array[where])


_made = []


def _channels(tmp_path_factory):
    if not _made:
        array = _voxels(3, (3, 40, 40, 40))
        url = tmp_path_factory.mktemp("channels") / "em" / "1"
        wkwdask.create_dataset(url.parent.parent, (4, 4, 4))
        wkwdask.to_wkw(array, url, block_len=8, file_len=4)
        _made.append((url, array))
        _settle()
    return _made[0]


# ------------------------------------------------------------------------------------------------
# what is kept


def test_the_second_call_keeps_blocks_and_the_third_decodes_none(mag, decoded):
    plain, kept = decoded
    assert all(_equals(mag, _slice(2, z)) for z in range(20, 30))
    assert (len(plain), kept) == (1, [16])
    assert block_cache.nbytes == 16 * BLOCK_NBYTES
    assert all(_equals(mag, ((3, 5, z), (40, 60, z + 1))) for z in range(16, 32))
    assert (len(plain), kept) == (1, [16])


def test_boxes_at_random_places_keep_nothing(mag):
    corners = np.random.default_rng(1).permutation(list(product(range(4), repeat=3)))[:40]
    for corner in corners.tolist():
        low = [16 * n for n in corner]
        assert _equals(mag, (low, [n + 16 for n in low]))
    assert block_cache.nbytes == 0


def test_paths_and_handles_share_blocks(mag, decoded):
    plain, kept = decoded
    opened = wkwdask.open(mag, axes="czyx", bounding_box=(0, 0, 8, 64, 64, 40))
    assert _equals(mag, _slice(2, 20))
    opened[:, 13].compute()
    expected = _voxels()[:, :, 22]
    assert np.array_equal(wkwdask.reader(mag).read(_slice(2, 22))[0, :, :, 0], expected)
    assert (len(plain), kept) == (1, [16])


def test_a_set_larger_than_the_cache_keeps_a_fixed_part(mag, decoded):
    plain, kept = decoded
    block_cache.limit_nbytes = 10 * BLOCK_NBYTES
    assert all(_equals(mag, _slice(2, z)) for z in range(16, 32))
    assert kept == [8]  # two of four columns
    assert plain == [(64, 64, 1)] + [(32, 64, 1)] * 15
    assert block_cache.nbytes == 8 * BLOCK_NBYTES


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("axis", range(3))
def test_a_new_layer_replaces_the_last_one_at_its_first_slice(mag, decoded, axis, step):
    plain, kept = decoded
    block_cache.limit_nbytes = 20 * BLOCK_NBYTES
    assert all(_equals(mag, _slice(axis, at)) for at in range(64)[::step])
    assert (len(plain), kept) == (1, [16] * 4)
    assert block_cache.nbytes == 16 * BLOCK_NBYTES


def test_the_first_slice_of_a_layer_that_is_not_beside_the_last_is_not_kept(mag, decoded):
    plain, kept = decoded
    assert all(_equals(mag, _slice(2, z)) for z in (0, 1, 32, 16, 63))
    assert (len(plain), kept) == (4, [16])


def test_arrays_that_are_read_in_turn_do_not_replace_each_other(mag, tmp_path, decoded):
    plain, kept = decoded
    other = tmp_path / "other" / "1"
    _write(other, seed=1)
    _settle()
    block_cache.limit_nbytes = 20 * BLOCK_NBYTES
    for z in range(16, 24):
        assert _equals(mag, _slice(2, z))
        assert _equals(other, _slice(2, z), seed=1)
    assert (len(plain), kept) == (1 + 8, [16])
    assert all(_equals(other, _slice(2, z), seed=1) for z in range(24, 27))
    assert kept == [16, 16]  # the first array was not read in between


def test_a_smaller_limit_evicts_and_0_turns_the_cache_off(mag):
    for z in range(16, 18):
        wkwdask.read(mag, _slice(2, z))
    assert block_cache.nbytes
    wkwdask.set_block_cache(cache_nbytes=0)
    assert block_cache.nbytes == 0
    assert all(_equals(mag, _slice(2, z)) for z in range(18, 22))
    assert block_cache.nbytes == 0
    with pytest.raises(ValueError, match="cache_nbytes must be at least 0, got -1"):
        wkwdask.set_block_cache(cache_nbytes=-1)
    with pytest.raises(TypeError, match="cache_nbytes must be a whole number, got '1GiB'"):
        wkwdask.set_block_cache("1GiB")


@pytest.mark.parametrize(("text", "expected"), [("", 256 << 20), ("0", 0), ("4096", 4096)])
def test_the_environment_states_the_size(monkeypatch, text, expected):
    monkeypatch.setenv("WKWDASK_CACHE_NBYTES", text)
    assert module.BlockCache().limit_nbytes == expected


def test_a_size_that_is_no_number_names_the_variable(monkeypatch):
    monkeypatch.setenv("WKWDASK_CACHE_NBYTES", "1GB")
    with pytest.raises(ValueError, match=r"WKWDASK_CACHE_NBYTES: .* bytes, got '1GB'"):
        _ = module.BlockCache().limit_nbytes


def test_few_arrays_are_noted(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_MOST_ARRAYS", 2)
    mags = [tmp_path / f"em{n}" / "1" for n in range(4)]
    for path in mags:
        _write(path)
    _settle()
    for path in mags:
        assert all(_equals(path, _slice(2, z)) for z in range(3))
    assert block_cache.nbytes == 2 * 16 * BLOCK_NBYTES


def test_blocks_cannot_be_written(mag):
    for z in range(16, 18):
        wkwdask.read(mag, _slice(2, z))[...] = 0
    assert all(not kept.memory.flags.writeable for kept in block_cache._kept.values())
    assert _equals(mag, _slice(2, 18))


def test_tasks_of_jobs_do_not_use_it(mag):
    def run(task):
        for z in range(16, 20):
            wkwdask.read(mag, _slice(2, z))
        raise OSError(task)

    assert str(retries.attempt(run, "over").error) == "over"
    assert block_cache.nbytes == 0
    for z in range(16, 18):
        wkwdask.read(mag, _slice(2, z))
    assert block_cache.nbytes


def _scroll(path):
    for z in range(16, 19):
        wkwdask.read(path, _slice(2, z))
    return block_cache.nbytes


def test_workers_of_dask_use_a_part_of_their_memory(mag, monkeypatch):
    distributed = pytest.importorskip("distributed")
    assert module._WORKER_SHARE == 0.05
    monkeypatch.setattr(module, "_WORKER_SHARE", 9 * BLOCK_NBYTES / (4 << 30))
    with (
        distributed.LocalCluster(
            1, processes=False, threads_per_worker=1, memory_limit=4 << 30, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert client.submit(_scroll, mag).result() == 8 * BLOCK_NBYTES


def test_a_broken_block_beside_the_slice_is_no_error(tmp_path):
    path, voxels = tmp_path / "em" / "1", _voxels() % 3
    wkwdask.create_dataset(path.parent.parent, (4, 4, 4))
    wkwdask.to_wkw(voxels, path, block_len=32, file_len=2)
    file = path / "z0" / "y0" / "x0.wkw"
    raw = bytearray(file.read_bytes())
    raw[-40:] = b"\xff" * 40  # the end of the last block
    file.write_bytes(raw)
    _settle()
    for z in range(32, 38):
        assert np.array_equal(wkwdask.read(path, _slice(2, z))[0, :, :, 0], voxels[:, :, z])
    assert block_cache.nbytes == 0
    for _ in range(3):
        with pytest.raises(CorruptError, match=r"x0\.wkw"):
            wkwdask.read(path, ((0, 0, 63), (64, 64, 64)))


# ------------------------------------------------------------------------------------------------
# files that change


def _replace(path, seed, *, in_place=False, keeps_time=True):
    """Replace the files of a mag by those of another one."""
    other = path.parent.parent / f"new{seed}" / "1"
    if not other.exists():
        _write(other, seed)
    for file in sorted(path.rglob("x*.wkw")):
        new, status = other / file.relative_to(path), file.stat()
        if in_place:
            file.write_bytes(new.read_bytes())
        else:
            copy = file.with_suffix(".new")
            shutil.copyfile(new, copy)
            os.replace(copy, file)
        if keeps_time:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("in_place", [False, True])
def test_files_that_are_replaced_are_read_again(mag, in_place):
    for seed in range(4):
        assert all(_equals(mag, _slice(2, z), seed) for z in range(16, 20))
        assert block_cache.nbytes == 16 * BLOCK_NBYTES
        _replace(mag, seed + 1, in_place=in_place)
        assert _equals(mag, _slice(2, 20), seed + 1)
        _settle()


@pytest.mark.parametrize("in_place", [False, True])
def test_files_that_are_replaced_within_one_tick_are_read_again(mag, in_place, monkeypatch):
    monkeypatch.setattr(module, "_LEAST_AGE_NS", 2_000_000_000)
    for seed in range(1, 20):
        _replace(mag, seed % 2 + 1, in_place=in_place)
        assert all(_equals(mag, _slice(2, z), seed % 2 + 1) for z in range(16, 19))
        assert block_cache.nbytes == 0


def test_a_file_that_is_removed_and_made_again_is_read_again(mag):
    file = mag / "z0" / "y0" / "x0.wkw"
    raw, status = file.read_bytes(), file.stat()
    expected = _voxels()
    for _ in range(2):
        for z in range(16, 20):
            assert _equals(mag, _slice(2, z))
        file.unlink()
        for z in range(16, 20):
            found = wkwdask.read(mag, _slice(2, z))
            assert not found[0, :32, :32].any()
            assert np.array_equal(found[0, 32:, :, 0], expected[32:, :, z])
        assert block_cache.nbytes  # absence is kept too
        file.write_bytes(raw)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert _equals(mag, _slice(2, 20))
        _settle()


def test_a_region_that_is_written_is_read_again(mag):
    expected = _voxels()
    for seed in range(3):
        for z in range(16, 20):
            assert np.array_equal(wkwdask.read(mag, _slice(2, z))[0, :, :, 0], expected[:, :, z])
        assert block_cache.nbytes
        part = _voxels(seed + 5, (20, 30, 10))
        expected[7:27, 9:39, 15:25] = part
        wkwdask.write(mag, None, part, region=((7, 9, 15), (27, 39, 25)))
        _settle()


def test_a_mag_that_is_gone_is_missing(mag):
    for z in range(16, 20):
        wkwdask.read(mag, _slice(2, z))
    shutil.rmtree(mag)
    with pytest.raises(wkwdask.MissingError):
        wkwdask.read(mag, _slice(2, 20))


class _Files:
    """Steps that change a mag, with the voxels that it must have."""

    def __init__(self, path):
        self.path, self.voxels = path, _voxels()
        self.removed = {}

    def file(self, index):
        return self.path / "z{2}/y{1}/x{0}.wkw".format(*index)

    def where(self, index):
        return tuple(slice(32 * n, 32 * n + 32) for n in index)

    def remove(self, index):
        file = self.file(index)
        if file.exists():
            self.removed[index] = file.read_bytes(), self.voxels[self.where(index)].copy()
            file.unlink()
            self.voxels[self.where(index)] = 0

    def put_back(self, index):
        if not self.file(index).exists() and index in self.removed:
            raw, voxels = self.removed[index]
            self.file(index).write_bytes(raw)
            self.voxels[self.where(index)] = voxels

    def invert(self, index):
        """Rewrite a file in place."""
        file = self.file(index)
        if file.exists():
            raw = file.read_bytes()
            file.write_bytes(raw[:16] + bytes(255 - n for n in raw[16:]))
            self.voxels[self.where(index)] = 255 - self.voxels[self.where(index)]

    def write(self, index):
        part = _voxels(sum(index) + 1, (20, 20, 20))
        corner = [20 * n for n in index]
        wkwdask.write(self.path, None, part, region=(corner, [n + 20 for n in corner]))
        self.voxels[tuple(slice(n, n + 20) for n in corner)] = part


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("changes") / "em" / "1"
    _write(path)
    return _Files(path)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["remove", "put_back", "invert", "write"]),
            st.tuples(*[st.integers(0, 1)] * 3),
            st.booleans(),
            st.integers(0, 2),
            st.integers(0, SIZE - 3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_reads_follow_all_changes(files, steps):
    for verb, index, is_settled, axis, at in steps:
        if is_settled:
            _settle()
        for n in range(3):
            box = _slice(axis, at + n)
            found = wkwdask.read(files.path, box)[0]
            assert np.array_equal(found, files.voxels[tuple(map(slice, *box))])
        getattr(files, verb)(index)
        box = _slice(axis, at)
        found = wkwdask.read(files.path, box)[0]
        assert np.array_equal(found, files.voxels[tuple(map(slice, *box))])


# ------------------------------------------------------------------------------------------------
# threads and forks


def test_threads_share_the_cache(mag):
    block_cache.limit_nbytes = 40 * BLOCK_NBYTES
    errors = []

    def scroll(axis):
        boxes = [_slice(axis, n % SIZE) for n in range(60)]
        errors.extend(box for box in boxes if not _equals(mag, box))

    workers = [threading.Thread(target=scroll, args=(n % 3,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors
    assert block_cache.nbytes == sum(kept.memory.nbytes for kept in block_cache._kept.values())
    assert block_cache.nbytes <= 40 * BLOCK_NBYTES


def test_a_forked_child_starts_empty_while_another_thread_holds_the_lock(mag):
    for z in range(16, 18):
        wkwdask.read(mag, _slice(2, z))
    held, done = threading.Event(), threading.Event()

    def hold():
        with block_cache._lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        try:
            is_right = block_cache.nbytes == 0 and all(
                _equals(mag, _slice(2, z)) for z in range(16, 20)
            )
            os._exit(0 if is_right and block_cache.nbytes == 16 * BLOCK_NBYTES else 1)
        finally:
            os._exit(2)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _equals(mag, _slice(2, 20))
    assert block_cache.nbytes == 16 * BLOCK_NBYTES


def test_a_child_that_is_forked_while_blocks_are_decoded_reads_on(mag, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    decode = module._Call.decode

    def waiting(call, cells, num_threads):
        started.set()
        go_on.wait()
        return decode(call, cells, num_threads)

    wkwdask.read(mag, _slice(2, 16))
    monkeypatch.setattr(module._Call, "decode", waiting)
    reader = threading.Thread(target=wkwdask.read, args=(mag, _slice(2, 17)))
    reader.start()
    started.wait()
    child = os.fork()
    if child == 0:
        try:
            go_on.set()
            os._exit(0 if all(_equals(mag, _slice(2, z)) for z in range(16, 20)) else 1)
        finally:
            os._exit(2)
    go_on.set()
    reader.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert block_cache.nbytes == 16 * BLOCK_NBYTES


def test_files_that_change_while_they_are_decoded_are_not_kept(mag, monkeypatch):
    decode = module._Call.decode

    def changing(call, cells, num_threads):
        blocks = decode(call, cells, num_threads)
        _replace(mag, 1)
        return blocks

    wkwdask.read(mag, _slice(2, 16))
    monkeypatch.setattr(module._Call, "decode", changing)
    assert _equals(mag, _slice(2, 17), seed=1)
    assert block_cache.nbytes == 0


@pytest.mark.needs("zarr")
def test_views_as_zarr_use_it(mag, decoded):
    import zarr

    plain, kept = decoded
    array = zarr.open_array(wkwdask.zarr_view(mag, chunk_shape=(64, 64, 8)), mode="r", path="1")
    for z in range(16, 32):
        assert np.array_equal(array[z], _voxels()[:, :, z].T)
    assert (plain, kept) == ([(64, 64, 8)], [16])


def _xarray_slices(mag):
    voxels = pytest.importorskip("xarray").open_dataset(mag, engine="wkw", chunks=None)["em"]
    return lambda z: voxels.isel(z=z).squeeze().transpose("x", "y").values


def _napari_slices(mag):
    from wkwdask.viewer.napari import read_layers

    ((levels, *_),) = read_layers(str(mag))
    array = levels[0] if isinstance(levels, list) else levels
    return lambda z: np.asarray(array[z]).T


@pytest.mark.parametrize("open_slices", [_xarray_slices, _napari_slices])
def test_slices_of_other_interfaces_use_it(mag, decoded, open_slices):
    plain, kept = decoded
    slice_at = open_slices(mag)
    plain.clear()
    for z in range(16, 32):
        assert np.array_equal(slice_at(z), _voxels()[:, :, z])
    assert (len(plain), kept) == (1, [16])


@pytest.mark.needs("neuroglancer")
def test_the_viewer_uses_it(tmp_path, decoded):
    """For chunks that the server converts. It sends whole blocks, so only a chunk that is requested
    again, by a second page or browser, is found."""
    path = tmp_path / "em" / "1"
    wkwdask.create_dataset(tmp_path, (4, 4, 4))
    wkwdask.to_wkw(_voxels().astype(np.int64), path, block_len=32, compression="raw")
    _settle()
    plain, kept = decoded
    with wkwdask.view(path) as view:
        base = f"http://127.0.0.1:{view.port}/{view.url.split('/')[-2]}/data/0/1"
        document = json.loads(_fetch(f"{base}/zarr.json"))
        dtype, shape = document["data_type"], document["chunk_grid"]["configuration"]["chunk_shape"]
        assert (plain, kept) == ([], [])
        for _ in range(4):
            chunk = np.frombuffer(_fetch(f"{base}/c/0/0/0"), dtype).reshape(shape).T
            assert np.array_equal(chunk, _voxels()[tuple(map(slice, chunk.shape))])
    # each request converts the chunk, but reads the blocks once without the cache, once into it
    assert (len(plain), kept) == (4 + 1, [4])


def _fetch(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()
