"""Run a job on a dask cluster.

A window of futures is in flight, and each future is released when its result has arrived. So the
memory of the scheduler does not grow with the job, and a lost worker costs only the tasks that it
was running. Faults, and how the run handles them::

    a task raises                          retried after a delay, on other workers
    the worker of a task dies              dask runs the task again; after several deaths it becomes a suspect
    a task is a suspect                    runs alone after all others, on a worker with nothing else, up to 3 times
    a result cannot be fetched             the task runs again, away from the workers that hold the result
    a task takes far longer than others    a copy starts on another worker; the first result counts
    all workers are paused for a minute    the job fails with the remedy
"""  # noqa: E501

from __future__ import annotations

import pickle
import time
from collections import Counter
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from socket import gethostname
from typing import TYPE_CHECKING, Any

from wkwdask.errors import TaskFailedError
from wkwdask.graphs.packing import Packer, run_packed
from wkwdask.graphs.task_queue import TaskQueue
from wkwdask.runs.job import Result
from wkwdask.runs.retries import FailedAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from distributed.scheduler import KilledWorker

    from wkwdask.runs.job import Task
    from wkwdask.runs.retries import RetryingJob


_PAUSED_SECONDS = 60.0


def workers_of(client: Any) -> list[dict[str, Any]]:
    """Ask the scheduler for its workers. A closed client has none."""
    # Client.scheduler_info may return another answer, without workers, which the client asks for
    # every few seconds.
    return (
        []
        if client.scheduler is None
        else list(client.sync(client.scheduler.identity, n_workers=-1)["workers"].values())
    )


class PauseWatch:
    """Detect a cluster whose workers are all paused for good.

    Dask pauses a worker whose memory is nearly full, and resumes it when finished tasks have freed
    some. A worker that needs more than its limit even when idle stays paused, and the job would
    wait forever without a message.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._since: float | None = None

    def check(self) -> None:
        """Raise :class:`TaskFailedError` if all workers have been paused and idle for a minute.
        Called repeatedly while no result arrives."""
        try:
            workers = workers_of(self._client)
        except OSError:  # the scheduler does not answer at the moment
            return
        now = time.monotonic()
        if not workers or not all(_is_stuck(worker) for worker in workers):
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= _PAUSED_SECONDS:
            raise TaskFailedError(_describe(workers))


def _is_stuck(worker: dict[str, Any]) -> bool:
    return worker["status"] == "paused" and not worker["metrics"].get("task_counts", {}).get(
        "executing"
    )


def _describe(workers: Sequence[dict[str, Any]]) -> str:
    worst = max(workers, key=lambda worker: float(worker["metrics"].get("memory", 0)))
    used, limit = (
        int(worst["metrics"].get("memory", 0)) >> 20,
        int(worst["memory_limit"] or 0) >> 20,
    )
    who = "the only worker is" if len(workers) == 1 else f"all {len(workers)} workers are"
    return (
        f"{who} paused: memory is full though nothing runs ({worst['name']}: {used} MiB of {limit} "
        "MiB); "
        "give each more memory (--memory-limit of dask worker, memory and processes of a cluster's "
        "configuration)"
    )


_AVOIDED_SECONDS = 300.0


class Workers:
    """Workers of a cluster, and those to avoid for a while."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._num_threads: dict[str, int] = {}
        self._avoided: dict[str, float] = {}

    def num_threads(self) -> Mapping[str, int]:
        """Return the threads of each worker; the last known ones if the scheduler does not
        answer."""
        with suppress(OSError):
            self._num_threads = dict(self._client.nthreads())
        return self._num_threads

    def avoid(self, workers: Iterable[str]) -> None:
        """Prefer other workers for a while: a stopped or disconnected worker would accept one task
        after another and finish none."""
        self._avoided |= dict.fromkeys(workers, time.monotonic() + _AVOIDED_SECONDS)

    def preferred(self, exclude: Iterable[str] = ()) -> list[str]:
        """Return the workers that are neither avoided nor excluded; if none are left, those that
        are not excluded."""
        now = time.monotonic()
        self._avoided = {worker: until for worker, until in self._avoided.items() if until > now}
        others = set(self.num_threads()) - set(exclude)
        return sorted(others - self._avoided.keys()) or sorted(others)

    def avoiding(self, workers: Iterable[str] = ()) -> dict[str, Any]:
        """Return arguments of ``Client.submit`` that prefer workers other than these and the
        avoided ones."""
        workers = set(workers)
        return prefer_workers(self.preferred(workers)) if workers or self._avoided else {}

    def running(self) -> dict[str, str]:
        """Return the worker of each running task; empty if the scheduler does not answer."""
        with suppress(OSError):
            return {
                key: worker for worker, keys in self._client.processing().items() for key in keys
            }
        return {}

    def holders(self, future: Any) -> set[str]:
        """Return the workers that hold a result; empty if the cluster does not answer."""
        if self._client.status == "running":
            with suppress(OSError, CancelledError):
                return {
                    worker
                    for workers in self._client.who_has([future]).values()
                    for worker in workers
                }
        return set()


def prefer_workers(workers: Sequence[str]) -> dict[str, Any]:
    """Return arguments of ``Client.submit`` that prefer some workers."""
    # Without allow_other_workers, a task whose workers are all gone would wait forever.
    return {"workers": workers, "allow_other_workers": True} if workers else {}


_WINDOW_PER_WORKER = 3
# least work queued per worker: tasks of milliseconds must not wait for a round trip each
_WINDOW_WORK_SECONDS = 0.1
_MOST_PER_WORKER = 32
_WINDOW_SECONDS = 2.0  # interval at which the number of workers is queried
_POLL_SECONDS = 5.0
_SCHEDULER_GONE = "the dask scheduler is gone and did not come back"
_RESULT_SECONDS = 20.0  # timeout to fetch a receipt of some hundred bytes
_LATE_SECONDS = 60.0  # a task is late after this time ...
_LATE_FACTOR = 10.0  # ... and after so many times the average time
_MOST_DEATHS = 3  # workers that may die while they run the same task and nothing else


@dataclass(slots=True)
class _Suspect:
    """A task whose workers died, perhaps because of another task that they were running.

    It runs again after all other tasks, alone on one worker, which dask may not replace by another.
    If that worker dies too, the task itself is at fault.
    """

    task: Task
    error: KilledWorker
    """Error of the cluster."""
    worker: str = ""
    """Worker that runs the task alone."""
    deaths: int = 0
    """Workers that died while they ran the task alone."""


@dataclass(slots=True)
class _Attempt:
    """A submitted task."""

    task: Task
    future: Any
    since: float
    """Time of submission, by ``time.monotonic``."""
    suspect: _Suspect | None
    """Set if the task runs alone."""
    sent: bytes | None = None
    """Its result, if the worker has sent it."""


def _keep_sent(attempts: Mapping[str, _Attempt], event: tuple[float, Any]) -> None:
    """Keep the result that a worker sent. Each comes before its future ends, so that no round trip
    fetches it."""
    message = event[1]
    if not isinstance(message, dict):  # those of the scheduler, which are about this client, too
        key, result = message
        if key in attempts:
            attempts[key].sent = result


class ClientRun:
    """Run of a job on a dask cluster."""

    def __init__(
        self, job: RetryingJob, client: Any, resources: Mapping[str, float] | None = None
    ) -> None:
        self._job = job
        self._resources = dict(resources or {})
        self._client = client
        self._queue = TaskQueue(job)
        self._packer = Packer()
        self._attempts: dict[str, _Attempt] = {}
        self._ended: SimpleQueue[Any] = SimpleQueue()
        self._window = 0
        self._window_until = 0.0
        self._seconds_per_task = 0.0
        self._work_seconds: float | None = None
        self._suspects: list[_Suspect] = []
        self._failed_on: dict[str, set[str]] = {}
        self._workers = Workers(client)
        self._watch = PauseWatch(client)

    def run(self) -> None:
        """Keep a window of tasks in flight until nothing is left."""
        self._check_resources()
        # The scheduler forgets the topic that has the client's name when the client is gone.
        try:
            self._client.subscribe_topic(self._client.id, partial(_keep_sent, self._attempts))
            self._fill()
            while self._attempts or self._queue.has_more() or self._suspects:
                try:
                    self._collect(self._ended.get(timeout=self._timeout()))
                except Empty:
                    self._check_cluster()
                self._fill()
        except BaseException as error:
            if (
                self._is_gone()
                and isinstance(error, Exception)
                and not isinstance(error, TaskFailedError)
            ):
                raise TaskFailedError(_SCHEDULER_GONE) from error
            if not self._is_gone():
                self._client.cancel(
                    [attempt.future for attempt in self._attempts.values()], force=True
                )
            raise
        finally:
            if not self._is_gone():
                self._client.unsubscribe_topic(self._client.id)

    def _check_resources(self) -> None:
        """Raise a ValueError if no worker has the resources that tasks need: the job would wait
        forever."""
        workers = workers_of(self._client) if self._resources else []
        if workers and not any(
            all(worker["resources"].get(name, 0) >= n for name, n in self._resources.items())
            for worker in workers
        ):
            needed = ",".join(f"{name}={n:g}" for name, n in self._resources.items())
            raise ValueError(
                f"no worker has the resources {needed}; start workers with --resources {needed} "
                "(worker-extra-args of a cluster's configuration)"
            )

    def _timeout(self) -> float:
        pause = self._queue.retry_delay()
        return _POLL_SECONDS if pause is None else min(_POLL_SECONDS, pause)

    def _is_gone(self) -> bool:
        return self._client.status in ("closed", "closing")

    def _fill(self) -> None:
        if self._client.status != "running":
            # the connection is lost; the client tries to reconnect for a while
            return
        now = time.monotonic()
        if now >= self._window_until:
            workers = sum(self._workers.num_threads().values())
            self._job.progress.workers = workers
            self._window = self._window_per_worker() * max(1, workers)
            self._window_until = now + _WINDOW_SECONDS
        tasks: list[Task] = []
        while (
            len(self._attempts) + len(tasks) < self._window
            and (task := self._queue.pop()) is not None
        ):
            if task.key in self._failed_on:
                self._submit([task], **self._workers.avoiding(self._failed_on[task.key]))
            else:
                tasks.append(task)
        self._submit(tasks)
        if self._suspects and not self._attempts and not self._queue.has_more():
            self._run_alone()

    def _window_per_worker(self) -> int:
        if self._work_seconds is None:
            return _WINDOW_PER_WORKER
        return max(
            _WINDOW_PER_WORKER,
            min(_MOST_PER_WORKER, int(_WINDOW_WORK_SECONDS / max(self._work_seconds, 1e-6))),
        )

    def _run_alone(self) -> None:
        """Start one suspect, on another worker after each death."""
        workers = self._workers.preferred()
        if workers:
            suspect = self._suspects.pop()
            suspect.worker = workers[suspect.deaths % len(workers)]
            self._submit([suspect.task], suspect=suspect, workers=[suspect.worker])

    def _submit(
        self, tasks: Sequence[Task], suspect: _Suspect | None = None, **workers: Any
    ) -> None:
        workers = workers or self._workers.avoiding()
        packed = [self._packer.pack(self._job.attempt_remotely, task) for task in tasks]
        futures = self._client.map(
            run_packed,
            packed,
            [self._client.id] * len(packed),
            pure=False,
            retries=0,
            key="run_task",
            **({"resources": self._resources} if self._resources else {}),
            **workers,
        )
        for task, future in zip(tasks, futures, strict=True):
            self._attempts[future.key] = _Attempt(task, future, time.monotonic(), suspect)
            future.add_done_callback(self._ended.put)

    def _collect(self, first: Any) -> None:
        """Handle all futures that have ended so far. Results that were not sent are fetched
        together, since each round trip takes milliseconds."""
        futures = [first]
        while not self._ended.empty():
            futures.append(self._ended.get())
        finished = [
            future
            for future in futures
            if future.status == "finished" and future.key in self._attempts
        ]
        fetched = self._fetch(
            [future for future in finished if self._attempts[future.key].sent is None]
        )
        for future in futures:
            self._handle(future, fetched.get(future.key))

    def _fetch(self, futures: Sequence[Any]) -> dict[str, Result | FailedAttempt]:
        """Fetch several results in one round trip, by the key of their future; empty if that fails,
        so that each is fetched alone."""
        if len(futures) < 2:
            return {}
        try:
            results = self._client.sync(
                self._gather, futures, callback_timeout=min(_RESULT_SECONDS, _LATE_SECONDS)
            )
            return {
                future.key: pickle.loads(result)
                for future, result in zip(futures, results, strict=True)
            }
        except Exception:  # fetching one by one shows which future failed
            return {}

    async def _gather(self, futures: Sequence[Any]) -> Any:
        return await self._client.gather(futures, asynchronous=True)

    def _handle(self, future: Any, fetched: Result | FailedAttempt | None = None) -> None:
        """Pass the outcome of an attempt to the queue, or start the task again if the scheduler
        lost it."""
        attempt = self._attempts.pop(future.key, None)
        if attempt is None:  # a copy of the task finished first
            return
        copies = [key for key, other in self._attempts.items() if other.task is attempt.task]
        outcome = fetched if fetched is not None else self._outcome(future, attempt.sent)
        if isinstance(outcome, Result):
            self._handle_result(attempt, outcome, copies)
        elif copies:  # a copy may still succeed
            return
        elif outcome is None:
            self._resubmit(attempt.task, future)
        elif isinstance(outcome, FailedAttempt):
            self._handle_failure(attempt, outcome)
        else:
            self._handle_error(attempt, outcome)

    def _outcome(
        self, future: Any, sent: bytes | None
    ) -> Result | FailedAttempt | Exception | None:
        """Return the outcome of a task, or the error of the cluster; None if the scheduler lost
        it."""
        if future.status == "error":
            error: Exception = future.exception()
            return error
        if future.status in ("cancelled", "lost"):
            return None
        try:
            outcome: Result | FailedAttempt = pickle.loads(
                sent or future.result(timeout=min(_RESULT_SECONDS, _LATE_SECONDS))
            )
        except (OSError, CancelledError):  # timeouts, broken connections, a worker lost meanwhile
            return None
        except Exception as error:
            # lost together with the workers that computed it again, or not unpicklable in this
            # process
            return error
        return outcome

    def _handle_result(self, attempt: _Attempt, result: Result, copies: Sequence[str]) -> None:
        if copies:
            self._client.cancel([self._attempts.pop(key).future for key in copies], force=True)
        attempt.future.release()
        seconds = time.monotonic() - attempt.since
        self._seconds_per_task = (
            seconds if not self._seconds_per_task else 0.9 * self._seconds_per_task + 0.1 * seconds
        )
        self._work_seconds = (
            result.seconds
            if self._work_seconds is None
            else 0.9 * self._work_seconds + 0.1 * result.seconds
        )
        self._failed_on.pop(attempt.task.key, None)
        self._queue.finish(attempt.task, result)

    def _handle_failure(self, attempt: _Attempt, failed: FailedAttempt) -> None:
        """Pass a failure to the queue, and remember the worker if the task will be retried."""
        task, future = attempt.task, attempt.future
        if not self._queue.finish(task, failed):
            self._failed_on.pop(task.key, None)
            return
        self._failed_on.setdefault(task.key, set()).update(self._workers.holders(future))

    def _handle_error(self, attempt: _Attempt, error: Exception) -> None:
        """Handle an error of the cluster itself: the workers of the task died, or its result could
        not be read."""
        from distributed.scheduler import KilledWorker

        if not isinstance(error, KilledWorker):
            self._queue.finish(attempt.task, FailedAttempt(error, gethostname()))
        elif attempt.suspect is None:
            self._suspects.append(_Suspect(attempt.task, error))
        else:
            self._handle_death(attempt.suspect)

    def _handle_death(self, suspect: _Suspect) -> None:
        """Handle the death of a worker that ran one task alone."""
        suspect.deaths += 1
        if suspect.deaths < _MOST_DEATHS:
            self._suspects.append(suspect)
            return
        failure = TaskFailedError(
            f"{suspect.task.name}: given up after the workers that ran it died, the last "
            f"{suspect.deaths} while they ran nothing else "
            f"(the very last: {suspect.worker}; see its log)"
        )
        failure.__cause__ = suspect.error
        self._queue.finish(
            suspect.task,
            FailedAttempt(
                failure, gethostname(), attempts=suspect.error.allowed_failures + 1 + suspect.deaths
            ),
        )

    def _resubmit(self, task: Task, future: Any) -> None:
        """Run a task again whose result cannot be fetched, because the worker that holds it or the
        scheduler is gone, stopped or disconnected."""
        self._workers.avoid(self._workers.holders(future))
        future.release()
        self._queue.add([task])

    def _check_cluster(self) -> None:
        """Check scheduler, workers, suspects and late tasks when no result has arrived for a
        while."""
        if self._is_gone():
            raise TaskFailedError(_SCHEDULER_GONE)
        if self._client.status != "running":
            return
        self._watch.check()
        self._check_suspects()
        if not self._queue.has_more():
            self._duplicate_slow_tasks()

    def _check_suspects(self) -> None:
        """Handle suspects whose worker is gone: they may run on no other, so dask would keep them
        waiting forever."""
        for key, attempt in list(self._attempts.items()):
            if (
                attempt.suspect is not None
                and attempt.suspect.worker not in self._workers.num_threads()
            ):
                del self._attempts[key]
                self._client.cancel([attempt.future], force=True)
                self._handle_death(attempt.suspect)

    def _duplicate_slow_tasks(self) -> None:
        """Start a copy of each task that takes far longer than others did; its worker may be
        stopped or disconnected."""
        late = time.monotonic() - max(_LATE_SECONDS, _LATE_FACTOR * self._seconds_per_task)
        copied = Counter(id(attempt.task) for attempt in self._attempts.values())
        slow = {
            key: attempt.task
            for key, attempt in self._attempts.items()
            if attempt.since < late and attempt.suspect is None and copied[id(attempt.task)] == 1
        }
        if not slow:
            return
        worker_of = self._workers.running()
        self._workers.avoid(worker_of[key] for key in slow if key in worker_of)
        for key, task in slow.items():
            if key in worker_of and (others := self._workers.preferred(exclude=[worker_of[key]])):
                self._submit([task], **prefer_workers(others))
