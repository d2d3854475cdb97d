"""Reading on threads: parts of a box, threads that end with the call, and when one thread reads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import boxes, vectors

import wkwdask
import wkwdask.graphs.read
from wkwdask import BoundingBox, Mag
from wkwdask.store import cores
from wkwdask.streams import reading, threads
from wkwdask.streams.reading import split_box
from wkwdask.streams.threads import for_each

# ----------------------------------------------------------------------------- parts of a box


@given(
    boxes(min_size=1, mag=Mag(1, 1, 1)),
    vectors(-9, 9),
    vectors(1, 9),
    vectors(1, 4),
    st.integers(1, 30),
)
def test_parts_cover_a_box_once_and_cut_no_chunk(box, origin, chunk, chunks, count):
    shard = tuple(edge * n for edge, n in zip(chunk, chunks, strict=True))
    parts = split_box(box, origin, chunk, shard, count)
    times = np.zeros(box.size, np.uint8)
    for part in parts:
        times[
            tuple(
                slice(a - o, b - o)
                for a, b, o in zip(part.topleft, part.bottomright, box.topleft, strict=True)
            )
        ] += 1
        for axis in range(3):
            for border, end in (
                (part.topleft[axis], box.topleft[axis]),
                (part.bottomright[axis], box.bottomright[axis]),
            ):
                assert border == end or (border - origin[axis]) % chunk[axis] == 0
    assert (times == 1).all()
    # z is the slowest axis of a Fortran array
    assert parts == sorted(parts, key=lambda part: part.topleft[::-1])
    num_chunks = np.prod(
        [
            -(-(b - o) // n) - (a - o) // n
            for a, b, o, n in zip(box.topleft, box.bottomright, origin, chunk, strict=True)
        ]
    )
    # an axis that ends inside chunks has up to two parts fewer than chunks
    assert len(parts) >= min(count, num_chunks) / 8


@pytest.mark.parametrize(
    ("size", "shard", "count", "expected"),
    [
        # one file: groups of 2**k layers of blocks
        ((512, 512, 512), 512, 8, [(512, 512, 64)] * 8),
        ((512, 512, 512), 64, 8, [(512, 512, 64)] * 8),  # files
        ((512, 512, 512), 32, 2, [(512, 512, 256)] * 2),
        ((4096, 256, 32), 1024, 4, [(4096, 64, 32)] * 4),  # one layer of blocks along z: y is split
        ((4096, 32, 32), 1024, 4, [(1024, 32, 32)] * 4),
        ((32, 32, 32), 1024, 4, [(32, 32, 32)]),  # one block
        ((64, 64, 64), 64, 1, [(64, 64, 64)]),
    ],
)
def test_parts_of_aligned_boxes(size, shard, count, expected):
    assert [
        part.size
        for part in split_box(
            BoundingBox((1024, 2048, 4096), size), (0, 0, 0), (32,) * 3, (shard,) * 3, count
        )
    ] == expected


# ----------------------------------------------------------------------------- threads


def names():
    return [thread.name for thread in threading.enumerate() if thread.name == "wkwdask-read"]


@pytest.mark.parametrize("count", [1, 3, 40])
def test_every_item_is_called_once(count):
    seen = []
    for_each(seen.append, range(20), count)
    assert sorted(seen) == list(range(20))
    assert names() == []


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_error_of_the_first_item_is_raised_after_all_threads_have_ended(count):
    ended = []

    def work(n):
        # the thread of item 3 may wait for a core while others go on
        time.sleep(0.02 * (n == 2) + 0.05 * (n > 3))
        ended.append(n)
        if n in (2, 3):
            raise KeyError(n)

    with pytest.raises(KeyError, match="2"):
        for_each(work, range(1000), count)
    assert names() == []
    assert len(ended) < 20  # no items are started after an error


@pytest.mark.parametrize("is_main", [True, False])
def test_an_interrupt_ends_all_threads(is_main):
    started = threading.Barrier(2)

    def work(n):
        if n < 2:
            started.wait(60)
        if n < 2 and (threading.current_thread() is threading.main_thread()) == is_main:
            raise KeyboardInterrupt
        time.sleep(0.01)
        if n < 2:
            raise KeyError(n)

    with pytest.raises(KeyboardInterrupt):
        for_each(work, range(1000), 2)
    assert names() == []


def test_threads_that_cannot_start_are_not_needed(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen = []
    for_each(seen.append, range(5), 3)
    assert seen == list(range(5))


# ----------------------------------------------------------------------------- number of threads


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(cores, "_cgroup_cores", lambda: 8)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)


@pytest.mark.usefixtures("eight_cores")
def test_one_thread_where_other_workers_use_the_cores(monkeypatch):
    assert cores.reading_threads() == 8
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cores.reading_threads).result() == 1
    for scheduler, expected in (("synchronous", 1), ("single-threaded", 1), ("threads", 8)):
        with dask.config.set(scheduler=scheduler):
            assert cores.reading_threads() == expected
    assert dask.delayed(cores.reading_threads)().compute(scheduler="threads") == 1
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert cores.reading_threads() == 3


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 100),
        (
            {
                "/proc/self/cgroup": "0::/user/job\n",
                "/sys/fs/cgroup/user/cpu.max": "150000 100000\n",
                "/sys/fs/cgroup/user/job/cpu.max": "max 100000\n",
            },
            2,
        ),
        # a container sees its own group as the root
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup//cpu.max": "300000 100000"}, 3),
        (
            {
                "/proc/self/cgroup": "4:cpu,cpuacct:/a\n",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000",
                "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            {
                "/proc/self/cgroup": "1:cpu:/\n",
                "/sys/fs/cgroup/cpu//cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu//cpu.cfs_period_us": "100000",
            },
            100,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/a\n",
                "/sys/fs/cgroup/memory/a/cpu.max": "100000 100000",
            },
            100,
        ),
    ],
)
def test_quota_of_the_control_group(files, expected, monkeypatch):
    monkeypatch.setattr(cores, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(os, "cpu_count", lambda: 100)
    cores._cgroup_cores.cache_clear()
    try:
        assert cores._cgroup_cores() == expected
    finally:
        cores._cgroup_cores.cache_clear()


PROCESSES = """
import multiprocessing, os, sys
import numpy as np
import wkwdask
from wkwdask.store.cores import reading_threads

def read(path):
    return reading_threads(), wkwdask.read(path, ((3, 4, 5), (150, 120, 99)), threads=2), wkwdask.read_many(path, BOXES)

BOXES = [((n, n, n), (n + 40, n + 40, n + 40)) for n in range(0, 70, 8)]

if __name__ == "__main__":
    path = sys.argv[1]
    cores = reading_threads()  # as many as the machine has
    _, whole, many = read(path)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            for threads, box, patches in pool.map(read, [path] * 6):
                assert threads == 1, (method, threads)
                assert (box == whole).all() and (patches == many).all(), method
    pid = os.fork()
    if not pid:
        os._exit(int(reading_threads() != 1 or (read(path)[1] != whole).any()))
    assert os.waitpid(pid, 0)[1] == 0
    assert reading_threads() == cores
    print("done")
"""  # noqa: E501


@pytest.mark.long
def test_forked_and_spawned_processes_read_by_one_thread(tmp_path):
    """The parent has read by threads before: its caches hold open files."""
    wkwdask.write(
        tmp_path / "1",
        (0, 0, 0),
        np.random.default_rng(0).integers(0, 9, (150, 120, 110), np.uint8),
        file_len=2,
    )
    (tmp_path / "script.py").write_text(PROCESSES)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path / "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=360,
    )
    assert done.stdout == "done\n", done.stderr


# ----------------------------------------------------------------------------- arrays


@pytest.fixture
def mag(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "_MIN_PART_NBYTES", 1)
    wkwdask.write(
        tmp_path / "1",
        (5, 6, 7),
        np.random.default_rng(0).integers(1, 200, (2, 70, 60, 90), np.uint8),
        block_len=8,
        file_len=2,
    )
    return tmp_path / "1"


def test_large_arrays_are_read_by_all_cores(mag, monkeypatch):
    used = []
    monkeypatch.setattr(wkwdask.api.reader, "reading_threads", lambda: 3)
    monkeypatch.setattr(
        wkwdask.api.reader,
        "read_on_threads",
        lambda _volume, _out, _topleft, count: used.append(count),
    )
    wkwdask.read(mag)
    wkwdask.read(mag, threads=2)
    monkeypatch.setattr(wkwdask.api.reader, "MIN_NBYTES", 1000)
    wkwdask.read(mag)
    assert used == [1, 2, 3]


@pytest.mark.parametrize(
    "read",
    [
        wkwdask.read,
        lambda mag, threads: wkwdask.read_many(mag, [((5, 6, 7), (8, 9, 10))], threads=threads),
    ],
)
def test_at_least_one_thread(mag, read):
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        read(mag, threads=0)
    with pytest.raises(TypeError, match="threads must be a whole number, got 'all'"):
        read(mag, threads="all")


def test_a_broken_file_raises_the_same_error_from_any_number_of_threads(mag):
    broken = sorted(mag.rglob("*.wkw"))[7]
    broken.write_bytes(broken.read_bytes()[:-5])
    errors = []
    for count in (1, 4):
        with pytest.raises(wkwdask.FormatError) as caught:
            wkwdask.read(mag, threads=count)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert names() == []


def test_threads_are_chosen_by_what_is_decoded(tmp_path, monkeypatch):
    """A slice returns a part of the chunks that it decodes: 4 KiB of 64 KiB."""
    voxels = np.random.default_rng(0).integers(1, 200, (64, 64, 64), np.uint8)
    wkwdask.create_dataset(tmp_path, (4, 4, 4))
    wkwdask.to_wkw(voxels, tmp_path / "em" / "1", block_len=16, file_len=4)
    monkeypatch.setattr(wkwdask.api.reader, "reading_threads", lambda: 3)
    for module in (wkwdask.api.reader, wkwdask.graphs.read):
        monkeypatch.setattr(module, "MIN_NBYTES", 32 << 10)
    monkeypatch.setattr(threads, "_MIN_PART_NBYTES", 8 << 10)
    lazy = wkwdask.open(tmp_path / "em" / "1")[0]
    with mock.patch.object(reading, "for_each", side_effect=for_each) as each:
        for axis in range(3):
            low, high = [0] * 3, [64] * 3
            low[axis], high[axis] = 20, 21
            where = tuple(map(slice, low, high))
            assert (wkwdask.read(tmp_path / "em" / "1", (low, high))[0] == voxels[where]).all()
            found = lazy[where].compute(scheduler="threads", num_workers=2)
            assert (found == voxels[where]).all()
        assert [len(call.args[1]) > 2 for call in each.call_args_list] == [True] * 6
        assert [call.args[2] for call in each.call_args_list] == [3, 2] * 3
        each.reset_mock()
        wkwdask.read(tmp_path / "em" / "1", ((16, 16, 16), (32, 32, 32)))  # 4 KiB of 4 KiB
        lazy[16:32, 16:32, 16:32].compute(scheduler="threads", num_workers=2)
        assert not each.called
