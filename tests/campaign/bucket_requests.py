"""Part of the campaign: faults of single requests to buckets, injected by a proxy.

A task has a server with a proxy in front of it, in a process of their own: the process that forks
jobs has no threads and no connections, which forks would not survive.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import moto.server  # noqa: F401 (takes seconds)
from remote.bucket_checks import FAULTS, make_start, problems_of
from remote.bucket_processes import JOBS, run, visible
from support import warm_imports  # noqa: F401 (loads kernels)
from support.buckets import azure_container, azurite_program, s3_bucket
from support.proxy import After, Answer, Cut, Exchange, Held, proxy

import wkwdask
from wkwdask.errors import LockedError, WkwDaskError
from wkwdask.formats.record_paths import OWNER_NAME
from wkwdask.store import leases, locks
from wkwdask.store.objects import object_store, remote
from wkwdask.store.store import store_at

from .forks import Child
from .results import Trial
from .system_calls import shifted_clock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from remote.bucket_checks import Start
    from support.buckets import Bucket
    from support.proxy import Fault, Proxy

_LIMIT_SECONDS = 120.0
_POINTS = {"full": 3200, "sample": 24}
_POINTS_OF_TASK = {"full": 20, "sample": 8}
_EVERY = 7
_SEVENTH = f", every {_EVERY}th"
_WRITES = frozenset({"PUT", "POST", "DELETE"})
_KILLED, _HELD = ("killed before", "killed after"), "killed, arrives late"
_STOPPED, _WAITING = "stopped and woken", "stopped, a clock ahead"
_CLOCKS = {"clock a day ahead": 86_400, "clock an hour back": -3600}
_TTL_SECONDS = 120.0
_FOR_GOOD = {
    "500 from then on": lambda: Answer(500),
    "403 from then on": lambda: Answer(403),
}
_NAMES = (
    *_KILLED,
    _HELD,
    _STOPPED,
    _WAITING,
    *_CLOCKS,
    *FAULTS,
    *(f"{name}{_SEVENTH}" for name in FAULTS if name != "done, silence"),
    *_FOR_GOOD,
)


def request_tasks(
    options: argparse.Namespace,
) -> Iterator[tuple[str, Callable[[Path], list[Trial]]]]:
    """Yield servers with jobs, in turns until there are enough points."""
    servers = ["s3", *(["az"] if azurite_program() else [])]
    names = [f"{server}-{job}" for job in JOBS for server in servers]
    names = [name for name in names if options.cell in (None, name)]
    rng, left, turn = random.Random(options.seed), _POINTS[options.size], 0
    while left > 0 and names:
        for name in rng.sample(names, len(names)):
            number = min(left, _POINTS_OF_TASK[options.size])
            left -= number
            server, _, job = name.partition("-")
            seed = f"{options.seed} {turn} {name}"
            yield name, partial(_trials, server, job, seed, number, options.point)
            if left <= 0 or options.point:
                return
        turn += 1


def _trials(
    server: str, job: str, seed: str, number: int, only: str | None, folder: Path
) -> list[Trial]:
    rng = random.Random(seed)
    with _serving(server, folder) as place:
        place.begin(job)
        points = [only] if only else [_draw(place.requests, rng) for _ in range(number)]
        return [place.try_point(point) for point in points]


def _draw(requests: list[Exchange], rng: random.Random) -> str:
    """Draw a fault, and a request that can get it."""
    while True:
        fault = rng.choice(_NAMES)
        numbers = [n for n in range(len(requests)) if _can_get(fault, n, requests)]
        if numbers:
            return f"{rng.choice(numbers)}:{fault}"


def _can_get(fault: str, number: int, requests: list[Exchange]) -> bool:
    request = requests[number]
    if fault.startswith("409"):
        return request.method == "PUT"
    if fault == _HELD or fault.startswith("done"):
        return request.method in _WRITES
    if fault == "short body":
        return request.method == "GET" and request.nbytes > 5
    if fault == "stale":
        before = [(each.method, each.path, each.range) for each in requests[:number]]
        return request.method == "GET" and before.count(("GET", request.path, request.range)) > 1
    return True


# ------------------------------------------------------------------- the process of the server


class _Server:
    """What the process of the server does for the process of the task."""

    def __init__(self, bucket: Bucket, running: Proxy) -> None:
        self._bucket, self._proxy = bucket, running
        self._late = threading.Event()
        self._hit: list[Exchange] = []

    def environments(self) -> tuple[str, dict[str, str], dict[str, str]]:
        """Return the URL of the bucket, and the variables that lead to it directly and through the
        proxy."""
        nowhere = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
        direct, behind = (
            nowhere | self._bucket.environment(url) | self._bucket.keys
            for url in (self._bucket.server, self._proxy.url)
        )
        return self._bucket.url, direct, behind

    def put(self, folder: str, objects: dict[str, bytes]) -> None:
        """Store objects in a folder of the bucket."""
        above = folder.removeprefix(f"{self._bucket.url}/")
        for name, data in objects.items():
            self._bucket.put(f"{above}/{name}", data)

    def arm(self, point: str, pid: int) -> None:
        """Choose the faults of the requests that a process makes from now on."""
        self._proxy.clear()
        self._late, self._hit = threading.Event(), []
        number, _, name = point.partition(":")
        if name in ("", *_CLOCKS):
            return
        numbers, failed = itertools.count(), set()

        def fault(request: Exchange) -> Fault | None:
            k = next(numbers) - int(number)
            if name.endswith(_SEVENTH):
                key = request.method, request.path
                if k < 0 or k % _EVERY or key in failed or not _can_get(name, 0, [request]):
                    return None
                failed.add(key)
            elif k < 0 or (k > 0 and name not in (*_KILLED, _HELD, *_FOR_GOOD)):
                return None
            self._hit.append(request)
            return self._fault(name.removesuffix(_SEVENTH), is_first=k == 0, pid=pid)

        self._proxy.fault = fault

    def _fault(self, name: str, *, is_first: bool, pid: int) -> Fault:
        kill = partial(os.kill, pid, signal.SIGKILL)
        if name in (*_KILLED, _HELD):
            if name == "killed after" and is_first:
                return After(Cut(), kill)
            with contextlib.suppress(ProcessLookupError):
                kill()
            return Held(self._late) if name == _HELD and is_first else Cut()
        if name in (_STOPPED, _WAITING):
            return After(Answer(500), partial(os.kill, pid, signal.SIGSTOP))
        return {**FAULTS, **_FOR_GOOD}[name]()

    def hit(self) -> str:
        """Return the first request that had a fault; empty if there was none."""
        return f"{self._hit[0].method} {self._hit[0].path}" if self._hit else ""

    def let_arrive(self) -> None:
        """Let a request arrive that was held, and wait until it is answered."""
        self._late.set()
        end = time.monotonic() + 5
        while self._hit and not self._hit[0].status and time.monotonic() < end:
            time.sleep(0.01)

    def requests(self) -> list[Exchange]:
        """Return the requests since the proxy was armed."""
        return list(self._proxy.requests)


def _serve(commands: Connection, name: str, folder: Path) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    start = s3_bucket() if name == "s3" else azure_container(folder)
    with start as bucket, proxy(bucket.server) as running:
        server = _Server(bucket, running)
        while (command := commands.recv()) is not None:
            function, *arguments = command
            commands.send(getattr(server, function)(*arguments))


# --------------------------------------------------------------------- the process of the task


class _Attempt(NamedTuple):
    """How a job ended."""

    error: str = ""
    is_ours: bool = True


class Place:
    """A bucket, and a job on images in it."""

    def __init__(self, commands: Connection) -> None:
        self._commands = commands
        self._url, self._direct, self._behind = self._ask("environments")
        self._numbers = itertools.count()
        self._start: Start
        self.requests: list[Exchange] = []
        """Requests of the job without a fault."""

    def _ask(self, *command: Any) -> Any:
        self._commands.send(command)
        return self._commands.recv()

    def begin(self, job: str) -> None:
        """Run a job without a fault, and note its requests."""
        self._start = self._checked(partial(make_start, job, f"{self._url}/start"))
        self._ended(self._job("", self._folder()))
        self.requests = self._ask("requests")

    def _folder(self) -> str:
        """Make a folder with the images on which the job works."""
        folder = f"{self._url}/{next(self._numbers)}"
        self._ask("put", folder, self._start.objects)
        return folder

    def _job(self, point: str, folder: str) -> Child:
        """Start the job; its requests go through the proxy."""

        def attempt() -> _Attempt:
            self._ask("arm", point, os.getpid())
            _connect(self._behind, no_answer_seconds=1 if "silence" in point else 8)
            fault = point.partition(":")[2]
            ttl_seconds = _TTL_SECONDS if fault == _WAITING else -10.0
            try:
                with shifted_clock(_CLOCKS.get(fault, 0)):
                    run(self._start.name, folder, ttl_seconds)
            except Exception as error:
                is_ours = isinstance(error, (WkwDaskError, OSError))
                return _Attempt(f"{type(error).__name__}: {error}", is_ours)
            return _Attempt()

        return Child(attempt, _LIMIT_SECONDS)

    def _ended(self, job: Child) -> _Attempt:
        """Wait for a job; return how it ended."""
        ending = job.ended()
        if ending.error and ending.code != -signal.SIGKILL:
            return _Attempt(ending.error, is_ours=False)
        return ending.value or _Attempt("killed")

    def _checked(self, function: Callable[[], Any]) -> Any:
        """Call a function in a process that reaches the bucket directly."""

        def call() -> Any:
            _connect(self._direct)
            return function()

        ending = Child(call, _LIMIT_SECONDS).ended()
        if ending.error:
            raise RuntimeError(ending.error)
        return ending.value

    def try_point(self, point: str) -> Trial:
        """Run the job with a fault, and look at what it leaves."""
        fault, folder = point.partition(":")[2], self._folder()
        job, problems, is_done = self._job(point, folder), [], False
        if fault in (_STOPPED, _WAITING):
            while job.poll(0.001) is None and not job.is_stopped():
                pass
            if job.poll() is None:
                meet = self._taken_over if fault == _STOPPED else self._refused
                problems, is_done = self._checked(partial(meet, folder))
                job.wake()
        attempt = self._ended(job)
        hit = fault if fault in _CLOCKS else self._ask("hit")
        if attempt.error and not is_done and fault in (_WAITING, *_CLOCKS):
            problems.append(f"the job did not survive: {attempt.error}")
        if not attempt.is_ours:
            problems.append(f"the job ended badly: {attempt.error}")
        is_complete = is_done or not attempt.error
        problems += self._checked(lambda: self._problems(folder, is_complete=is_complete))
        if fault == _HELD:
            self._ask("let_arrive")
            problems += self._checked(lambda: self._problems(folder, is_complete=True))
        return Trial(
            point,
            fault,
            f"{self._start.name}, {hit}",
            bool(hit),
            attempt.error or "succeeded",
            tuple(problems),
            any("voxels" in text or "mixture" in text for text in problems),
        )

    def _taken_over(self, folder: str) -> tuple[list[str], bool]:
        """Let another process do the work of one that is stopped; return what is wrong, and that
        the work is done."""
        with contextlib.suppress(WkwDaskError):  # of a removal that is complete
            run(self._start.name, folder)
        return self._unlike_new(folder, "it was not taken over"), True

    def _refused(self, folder: str) -> tuple[list[str], bool]:
        """Let another machine, whose clock shows a later time, make the same call: it must not take
        over what a living job has leased and locked. Return what is wrong, and whether the work is
        done."""
        found = [(above, name) for above, _, names in store_at(folder).walk() for name in names]
        records = [leases.read_lease("/".join(path)) for path in found if path[1] == OWNER_NAME]
        is_locked = any(locks.is_lock(name) for _, name in found) and any(
            record is not None and record.get("ended") is not True for record in records
        )
        with (
            shifted_clock(_CLOCKS["clock a day ahead"]),
            mock.patch.object(locks.Owner, "_can_be_seen", return_value=False),
        ):
            try:
                run(self._start.name, folder, _TTL_SECONDS)
            except LockedError:
                return [], False
            except (wkwdask.ExistsError, wkwdask.MissingError):  # all is published
                return [], True
        return ["a living job was taken over"] if is_locked else [], True

    def _unlike_new(self, folder: str, text: str) -> list[str]:
        remote._recent.clear()
        return [] if visible(folder) == self._start.after else [f"{text}: other voxels are visible"]

    def _problems(self, folder: str, *, is_complete: bool) -> list[str]:
        problems = self._unlike_new(folder, "the job is complete") if is_complete else []
        return [*problems, *problems_of(self._start, folder, "then")]


@contextlib.contextmanager
def _serving(name: str, folder: Path) -> Iterator[Place]:
    ours, theirs = multiprocessing.Pipe()

    def serve() -> None:
        ours.close()
        _serve(theirs, name, folder)

    server = Child(serve, float("inf"))
    theirs.close()
    try:
        yield Place(ours)
    finally:
        ours.send(None)
        server.ended()


def _connect(environment: dict[str, str], no_answer_seconds: int = 8) -> None:
    """Let this process reach a bucket, and never wait for long."""
    warnings.simplefilter("ignore")
    os.environ.update(environment)
    object_store._PAUSES_SECONDS = (0.001, 0.01)
    object_store._NO_ANSWER_SECONDS = no_answer_seconds
    leases.TTL_SECONDS = -10.0  # processes are known by their leases
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))
