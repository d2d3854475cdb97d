"""Functions with a set-up in each process, batches of blocks, and few calls at the same time."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
import weakref
from functools import partial

import dask
import numpy as np
import pytest
from faults.drivers import ENVIRONMENT, regions_of, without_flushing
from support.commands import run_here
from support.local_cluster import local_cluster
from support.segmenting import bright, smooth_noise

import wkwdask
from wkwdask.errors import ResumeError, TaskFailedError
from wkwdask.graphs.signals import sigterm_raises
from wkwdask.verbs.function_calls import FunctionCalls, Terminated

OFFSET, SHAPE = (13, 8, 5), (50, 38, 30)
SMALL = {"block_len": 8, "file_len": 2}
assert ENVIRONMENT  # progress of cluster processes is off


@pytest.fixture(autouse=True)
def _small_regions():
    with regions_of(16), without_flushing(), dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "ds"
    wkwdask.create_dataset(folder, (4, 4, 35))
    wkwdask.write(folder / "color" / "1", OFFSET, smooth_noise(1, SHAPE), **SMALL)
    return folder


class Model:
    """Result of a set-up; it cannot be pickled."""

    def __init__(self):
        self.lock = threading.Lock()


def apply(dataset, function, name="new", **options):
    return wkwdask.apply(
        function, dataset / "color" / "1", dataset / name / "1", chunks=8, **options
    )


def segment(dataset, function, name="cells", **options):
    settings = {"halo": 6, "chunks": 16, **options}
    return wkwdask.segment(function, dataset / "color" / "1", dataset / name / "1", **settings)


def result(dataset, name):
    return wkwdask.read(dataset / name / "1")[0]


# ----------------------------------------------------------------------------- set-up


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
@pytest.mark.parametrize("verb", [apply, segment])
def test_a_process_sets_up_once_and_forgets_it_at_the_end(dataset, scheduler, verb):
    made, calls = [], []

    def setup():
        model = Model()
        made.append(weakref.ref(model))
        return model

    def function(model, em):
        assert model is made[0]()
        assert model.lock.acquire(blocking=False)  # one call at a time
        calls.append(1)
        time.sleep(0.001)
        model.lock.release()
        return bright(em) if verb is segment else 255 - em

    with dask.config.set(scheduler=scheduler, num_workers=3):
        verb(dataset, function, setup=setup)
    gc.collect()
    assert len(made) == 1
    assert made[0]() is None
    assert len(calls) > 30


def test_each_worker_of_a_cluster_sets_up_once(dataset, tmp_path):
    log = tmp_path / "setups"

    def setup():
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return threading.Lock()  # cannot be pickled

    def function(lock, em):
        with lock:
            time.sleep(0.01)
            return em

    with local_cluster() as cluster, cluster.get_client():
        apply(dataset, function, setup=setup)
    pids = log.read_text().split()
    assert len(pids) == len(set(pids)) == 2
    assert str(os.getpid()) not in pids


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_sets_up_again():
    calls = FunctionCalls(os.getpid)
    assert calls.prepare() == (os.getpid(),)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(FunctionCalls.prepare, [calls]) != calls.prepare()


@pytest.mark.parametrize("verb", [apply, segment, partial(segment, on_error="fill")])
@pytest.mark.parametrize("error", [OSError, TimeoutError])
def test_a_failed_setup_names_the_host_and_ends_the_job_at_once(dataset, verb, error):
    tried = []

    def setup():
        tried.append(1)
        raise error("no device")

    with pytest.raises(TaskFailedError, match=f"{error.__name__}: no device") as failed:
        verb(dataset, lambda model, em: em, setup=setup)
    assert f"(in the set-up on {socket.gethostname()})" in str(failed.value)
    assert 'raise error("no device")' in str(failed.value)
    assert tried == [1]


def test_a_failed_setup_of_one_worker_ends_the_job_at_once(dataset, tmp_path):
    log = tmp_path / "log"

    def setup():
        with open(log, "a") as file:
            file.write("tried\n")
        raise OSError("no device")

    with (
        local_cluster() as cluster,
        cluster.get_client(),
        pytest.raises(TaskFailedError, match="1 task failed; the others would fail") as failed,
    ):
        segment(dataset, lambda model, em: em, setup=setup)
    assert f"(in the set-up on {socket.gethostname()})" in str(failed.value)
    assert len(log.read_text().split()) < 36


def test_the_signature_includes_the_result_of_the_setup(dataset):
    for verb in (apply, segment):
        with pytest.raises(TypeError, match="called with the result of setup and 1 array"):
            verb(dataset, lambda em: em, setup=Model)


# ----------------------------------------------------------------------------- batches


@pytest.mark.parametrize("batch", [2, 5, 100])
def test_batches_give_the_same_result(dataset, batch):
    sizes = []

    def brights(ems, box, read_box, voxel_size):
        sizes.append(len(ems))
        assert len(ems) == len(box) == len(read_box) == len(voxel_size)
        assert [em.shape for em in ems] == [box.size for box in read_box]
        assert voxel_size[0] == (4.0, 4.0, 35.0)
        return [bright(em) for em in ems]

    segment(dataset, brights, batch=batch)
    segment(dataset, bright, "single")
    np.testing.assert_array_equal(result(dataset, "cells"), result(dataset, "single"))
    assert max(sizes) == min(batch, 36)
    assert sum(sizes) == 36

    apply(dataset, lambda ems: [255 - em for em in ems], batch=batch)
    np.testing.assert_array_equal(result(dataset, "new"), 255 - smooth_noise(1, SHAPE))


def test_a_batch_has_a_list_for_each_source_and_no_empty_block(dataset):
    other = smooth_noise(2, SHAPE)
    other[:20] = 0
    wkwdask.write(dataset / "other" / "1", OFFSET, other, **SMALL)

    def function(others, ems):
        assert all(one.any() for one in others)
        return tuple(np.minimum(a, b) for a, b in zip(others, ems, strict=True))

    wkwdask.apply(
        function,
        [dataset / "other" / "1", dataset / "color" / "1"],
        dataset / "new" / "1",
        chunks=8,
        batch=3,
        skip_empty=True,
    )
    np.testing.assert_array_equal(result(dataset, "new"), np.minimum(other, smooth_noise(1, SHAPE)))


@pytest.mark.parametrize("verb", [apply, segment])
def test_a_batch_needs_a_result_for_each_block(dataset, verb):
    for function, match in (
        (lambda ems: ems[0], "returned ndarray, expected a list of"),
        (lambda ems: [*ems, ems[0]], "results, expected a list of"),
    ):
        with pytest.raises(TaskFailedError, match=match):
            verb(dataset, function, batch=4, most_failures=0, existing="overwrite")


def test_blocks_of_a_failed_batch_are_tried_alone_where_they_may_stay_empty(dataset):
    def function(ems, box):
        if any(one.topleft == (16, 16, 16) for one in box):
            raise ValueError("no")
        return [bright(em) for em in ems]

    report = segment(dataset, function, batch=6, on_error="fill")
    assert "1 block left empty" in report.note
    x, y, z = (slice(16 - o, 32 - o) for o in OFFSET)
    assert not result(dataset, "cells")[x, y, z].any()
    assert result(dataset, "cells").any()


def test_another_setup_or_batch_is_another_job(dataset):
    left = [10]

    def function(model, em):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return bright(em)

    with pytest.raises(KeyboardInterrupt):
        segment(dataset, function, setup=Model)
    left[0] = 1000
    with pytest.raises(ResumeError, match="batch was 1, is 2"):
        segment(dataset, function, setup=Model, batch=2)
    with pytest.raises(ResumeError, match=r"setup was .*Model, is "):
        segment(dataset, function, setup=threading.Barrier)
    segment(dataset, function, setup=Model)


# ----------------------------------------------------------------------------- calls at the same
# time, resources


@pytest.mark.parametrize("concurrency", [1, 2])
def test_only_so_many_calls_run_at_the_same_time(dataset, concurrency):
    running, most, lock = [0], [0], threading.Lock()

    def function(em):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1
        return em

    with dask.config.set(scheduler="threads", num_workers=4):
        apply(dataset, function, concurrency=concurrency)
    assert most[0] == concurrency


def test_only_workers_with_the_resource_call_the_function(dataset, tmp_path):
    log = tmp_path / "pids"

    def function(em):
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return bright(em)

    async def give_resource(dask_worker):
        await dask_worker.set_resources(GPU=1)

    with local_cluster() as cluster, cluster.get_client() as client:
        address = min(client.nthreads())
        with pytest.raises(ValueError, match="no worker has the resources GPU=1"):
            segment(dataset, function, resources={"GPU": 1})
        client.run(give_resource, workers=[address])
        pid = client.run(os.getpid, workers=[address])[address]
        segment(dataset, function, resources={"GPU": 1})
    assert set(log.read_text().split()) == {str(pid)}


@pytest.mark.parametrize("code", [(), (0,), ("no model",)])
@pytest.mark.parametrize("verb", [apply, segment])
def test_a_function_that_exits_is_an_error(dataset, verb, code):
    def leave(*_):
        sys.exit(*code)

    text = re.escape(f"RuntimeError: called sys.exit({repr(*code) if code else ''}); raise")
    for options in ({}, {"batch": 2}, {"setup": leave}):
        with pytest.raises((RuntimeError, TaskFailedError), match=text):
            verb(dataset, leave, **options)


def test_sigterm_ends_the_process_inside_of_a_function(dataset):
    def wait(_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    with sigterm_raises(), pytest.raises(Terminated) as ended:
        segment(dataset, wait)
    assert ended.value.code == 128 + signal.SIGTERM


def test_malformed_options_are_refused(dataset):
    for verb in (apply, segment):
        for options, error, match in (
            ({"batch": 0}, ValueError, "batch must be at least 1, got 0"),
            ({"batch": "2"}, TypeError, "batch must be a whole number, got '2'"),
            ({"concurrency": 0}, ValueError, "concurrency must be at least 1, got 0"),
            ({"concurrency": 1.5}, TypeError, "concurrency must be a whole number, got 1.5"),
        ):
            with pytest.raises(error, match=match):
                verb(dataset, bright, **options)
    with pytest.raises(ValueError, match="of no use without a target: batch="):
        wkwdask.apply(np.max, dataset / "color" / "1", batch=2)


def test_command(dataset, tmp_path):
    (tmp_path / "net.py").write_text(
        "import numpy as np\n"
        "def load():\n"
        "    return {'least': 140}\n"
        "def cells(model, ems):\n"
        "    return [em > model['least'] for em in ems]\n"
    )
    done = run_here(
        "segment", f"{tmp_path}/net.py:cells", dataset / "color/1", dataset / "cells/1", "--halo",
        "1", "--chunks", "16", "--match", "touch", "--setup", f"{tmp_path}/net.py:load", "--batch",
        "4", "--concurrency", "2", "--resources", "GPU=1",
    )  # fmt: skip
    assert done.returncode == 0, done.output
    assert ((result(dataset, "cells") > 0) == (smooth_noise(1, SHAPE) > 140)).all()
    done = run_here(
        "apply", "numpy:copy", dataset / "color/1", dataset / "x/1", "--resources", "GPU"
    )
    assert "--resources takes NAME=AMOUNT, such as GPU=1" in done.output
