"""Processes that write to a bucket are killed at a request, or stopped, taken over and woken up:
readers see each image as before or as after, and the same call completes it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from functools import partial

import pytest
from remote.bucket_checks import FAULTS, make_start, problems_of
from remote.bucket_processes import JOBS, run, visible
from support.buckets import gs_bucket, s3_bucket
from support.proxy import After, Answer, Cut, proxy
from support.warm_processes import WarmProcess

from wkwdask.errors import WkwDaskError
from wkwdask.store import leases
from wkwdask.store.objects import remote
from wkwdask.store.store import store_at

pytestmark = [pytest.mark.needs("obstore", "zarr"), pytest.mark.checks_more]
IS_NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
NAMES = [
    pytest.param(name, marks=pytest.mark.needs("zmesh", "DracoPy", "pyfqmr"))
    if name == "meshes"
    else name
    for name in JOBS
]
_numbers = itertools.count()
_WAIT_SECONDS = 240  # on a busy machine


class Place:
    """A bucket behind a proxy. Each run of a job has a separate folder."""

    def __init__(self, bucket, proxy):
        self.bucket, self.proxy = bucket, proxy
        self._starts = {}

    def variables(self, server):
        return {**self.bucket.environment(server), **self.bucket.keys}

    def folder(self, name):
        """Make a folder with the image on which a job works; the first one is copied."""
        folder = f"{self.bucket.url}/{next(_numbers)}"
        if name not in self._starts:
            self._starts[name] = make_start(name, folder)
            return self.folder(name)
        for key, data in self.start(name).objects.items():
            store_at(folder).put(key, data)
        return folder

    def start(self, name):
        return self._starts[name]

    @contextlib.contextmanager
    def process(self, name, folder, tmp_path, fault=lambda number: None):
        """Run a job in a process whose requests go through the proxy; ``fault`` chooses what goes
        wrong with a request by its number."""
        self.proxy.clear()
        self.proxy.fault = lambda request: fault(
            next(n for n, each in enumerate(self.proxy.requests) if each is request)
        )
        logs = {key: tmp_path / f"{next(_numbers)}-{key}" for key in ("output", "errors")}
        process = WarmProcess(run, name, folder, **logs, **self.variables(self.proxy.url))
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(_WAIT_SECONDS)
            self.proxy.clear()


@pytest.fixture(scope="module", params=["gs", pytest.param("s3", marks=pytest.mark.long)])
def place(request):
    start = {"s3": s3_bucket, "gs": gs_bucket}[request.param]
    with start() as bucket, proxy(bucket.server) as running, bucket.reached():
        yield Place(bucket, running)


@pytest.fixture(autouse=True)
def _fresh():
    remote._recent.clear()


def requests_of(place, name, tmp_path):
    """Return the number of requests of a job."""
    with place.process(name, place.folder(name), tmp_path) as process:
        assert process.wait(_WAIT_SECONDS) == 0
        return len(place.proxy.requests)


def chosen(number, count):
    """Some requests, all in a run of the night."""
    return range(number) if IS_NIGHT else range(number // (2 * count), number, number // count)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("then", ["rerun", "clean"])
@pytest.mark.parametrize("name", NAMES)
def test_killed(place, name, then, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "TTL_SECONDS", -10.0)
    number, problems = requests_of(place, name, tmp_path), []
    for n, is_done in itertools.product(chosen(number, 1), (False, True)):
        folder = place.folder(name)
        with place.process(name, folder, tmp_path, lambda k: fault(k)) as process:

            def fault(k, n=n, is_done=is_done, process=process):
                if k < n:
                    return None
                if k > n or not is_done:
                    process.kill()
                    return Cut()
                return After(Cut(), process.kill)

            process.wait(_WAIT_SECONDS)
        when = f"killed at {n}, {is_done}"
        problems += problems_of(place.start(name), folder, when, is_cleaned=then == "clean")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMES)
def test_stopped_taken_over_and_woken_up(place, name, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "TTL_SECONDS", -10.0)
    number, problems = requests_of(place, name, tmp_path), []
    for n in chosen(number, 1):
        folder, stopped = place.folder(name), []

        def stop(process, stopped=stopped):
            process.send_signal(signal.SIGSTOP)
            stopped.append(True)

        with place.process(name, folder, tmp_path, lambda k: fault(k)) as process:

            def fault(k, n=n, process=process, stop=stop):
                return After(Answer(500), partial(stop, process)) if k == n else None

            while not stopped and process.poll() is None:
                with contextlib.suppress(Exception):
                    process.wait(0.05)
            with contextlib.suppress(WkwDaskError):
                run(name, folder)
            remote._recent.clear()
            if visible(folder) != place.start(name).after:
                problems.append(f"stopped at {n}: it was not taken over")
            process.send_signal(signal.SIGCONT)
            process.wait(_WAIT_SECONDS)
        remote._recent.clear()
        if visible(folder) != place.start(name).after:
            problems.append(f"woken up at {n}: it changed what was complete")
        problems += problems_of(place.start(name), folder, f"woken up at {n}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", FAULTS)
def test_one_request_in_some_fails(place, kind, tmp_path):
    """Each of them once, so that what was asked for again is answered."""
    name, failed = "pyramid", set()
    step = 41 if kind == "done, silence" else 7

    def fault(k):
        request = place.proxy.requests[k]
        key = (request.method, request.path)
        # a lookup of one object takes no faults of writes
        if k % step != step - 1 or key in failed or (kind == "409" and request.method != "PUT"):
            return None
        failed.add(key)
        return FAULTS[kind]()

    folder = place.folder(name)
    with place.process(name, folder, tmp_path, fault) as process:
        process.wait(_WAIT_SECONDS)
    assert failed
    assert problems_of_ended(place, name, folder, process) == []


def problems_of_ended(place, name, folder, process):
    """A job that a fault ends leaves the image as it was, and is completed by the same call."""
    if process.returncode == 0 and visible(folder) != place.start(name).after:
        return ["it ended well, and is not complete"]
    return list(problems_of(place.start(name), folder, "failed"))
