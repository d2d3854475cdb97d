"""A job on a dask cluster.

A window of futures is in flight, each released as soon as its result is here: the scheduler's memory does not grow with the job, and a lost worker repeats
only what it was working on.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from socket import gethostname
from typing import TYPE_CHECKING, Any

from wkwdask.errors import TaskFailedError
from wkwdask.graphs.task_queue import TaskQueue
from wkwdask.runs.job import Result
from wkwdask.runs.retries import FailedAttempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from distributed.scheduler import KilledWorker

    from wkwdask.runs.job import Task
    from wkwdask.runs.retries import RetryingJob


_PAUSED_SECONDS = 60.0


class PauseWatch:
    """Looks at the workers now and then, while nothing comes back from them.

    Dask pauses a worker whose memory is nearly full, and lets it go on when tasks that end have made room. A limit below what a worker needs for itself is
    never left again: the job would wait for ever, and say nothing.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._since: float | None = None

    def check(self) -> None:
        """Look at the workers."""
        try:
            workers = list(self._client.scheduler_info(n_workers=-1).get("workers", {}).values())  # nothing where the connection is lost
        except OSError:  # the scheduler does not answer just now
            return
        now = time.monotonic()
        if not workers or not all(_is_stuck(worker) for worker in workers):
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= _PAUSED_SECONDS:
            raise TaskFailedError(_describe(workers))


def _is_stuck(worker: dict[str, Any]) -> bool:
    return worker["status"] == "paused" and not worker["metrics"].get("task_counts", {}).get("executing")


def _describe(workers: Sequence[dict[str, Any]]) -> str:
    worst = max(workers, key=lambda worker: float(worker["metrics"].get("memory", 0)))
    used, limit = int(worst["metrics"].get("memory", 0)) >> 20, int(worst["memory_limit"] or 0) >> 20
    return (
        f"all {len(workers)} workers are paused: their memory is full though they run nothing ({worst['name']}: {used} MiB of {limit} MiB); "
        "give each more memory (--memory-limit of dask worker, memory and processes of a cluster's configuration)"
    )


_AVOIDED_SECONDS = 300.0


class Workers:
    """Knows the workers of a cluster, and which of them to avoid."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._num_threads: dict[str, int] = {}
        self._avoided: dict[str, float] = {}

    def num_threads(self) -> Mapping[str, int]:
        """Count the threads of each worker; as they were where the scheduler does not answer just now."""
        with suppress(OSError):
            self._num_threads = dict(self._client.nthreads())
        return self._num_threads

    def avoid(self, workers: Iterable[str]) -> None:
        """Give no more tasks to some workers for a while, if there are others: what is stopped or cut off would take one after the other."""
        self._avoided |= dict.fromkeys(workers, time.monotonic() + _AVOIDED_SECONDS)

    def preferred(self, exclude: Iterable[str] = ()) -> list[str]:
        """Give the workers that are not to be avoided, without some more; where no such are left, without these alone."""
        now = time.monotonic()
        self._avoided = {worker: until for worker, until in self._avoided.items() if until > now}
        others = set(self.num_threads()) - set(exclude)
        return sorted(others - self._avoided.keys()) or sorted(others)

    def avoiding(self, workers: Iterable[str] = ()) -> dict[str, Any]:
        """Say to dask that tasks should rather not run on some workers, nor on those to be avoided."""
        workers = set(workers)
        return prefer_workers(self.preferred(workers)) if workers or self._avoided else {}

    def running(self) -> dict[str, str]:
        """Tell which worker has each task; nothing where the scheduler does not answer just now."""
        with suppress(OSError):
            return {key: worker for worker, keys in self._client.processing().items() for key in keys}
        return {}

    def holders(self, future: Any) -> set[str]:
        """Tell which workers have a result; none where the cluster does not say."""
        if self._client.status == "running":
            with suppress(OSError, CancelledError):
                return {worker for workers in self._client.who_has([future]).values() for worker in workers}
        return set()


def prefer_workers(workers: Sequence[str]) -> dict[str, Any]:
    """Say to dask where tasks should run; when all of these are gone, any will do: a task that may run nowhere would be waited for without end."""
    return {"workers": workers, "allow_other_workers": True} if workers else {}


_WINDOW_PER_WORKER = 3
_WINDOW_WORK_SECONDS = 0.1  # of work that each worker has at least, so that tasks of milliseconds do not wait for the way there and back
_MOST_PER_WORKER = 32
_WINDOW_SECONDS = 2.0  # how long the number of workers is believed
_POLL_SECONDS = 5.0
_GONE = "the dask scheduler is gone and did not come back"
_RESULT_SECONDS = 20.0  # how long a receipt of some hundred bytes may take to come
_LATE_SECONDS = 60.0
_LATE_FACTOR = 10.0
_MOST_DEATHS = 3  # of workers that ran a task and nothing else


@dataclass(slots=True)
class _Suspect:
    """A task whose workers died, maybe by the fault of another one beside it.

    It runs again when all else is done, on one worker that runs nothing else. If that dies too, the task does not go on to the next by itself, and whose fault
    it was is known.
    """

    task: Task
    """The task."""
    error: KilledWorker
    """What the cluster said."""
    worker: str = ""
    """Where it runs now."""
    deaths: int = 0
    """How many workers died while they ran nothing else."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A task that was handed to a cluster."""

    task: Task
    """The task."""
    future: Any
    """What came of it, or will."""
    since: float
    """When."""
    suspect: _Suspect | None
    """Why it runs alone, if it does."""


class ClientRun:
    """Runs a job on a dask cluster."""

    def __init__(self, job: RetryingJob, client: Any) -> None:
        self._job = job
        self._client = client
        self._queue = TaskQueue(job)
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

    def to_end(self) -> None:
        """Keep a window of tasks in flight until nothing is left."""
        try:
            self._fill()
            while self._attempts or self._queue.has_more() or self._suspects:
                try:
                    self._take_all(self._ended.get(timeout=self._timeout()))
                except Empty:
                    self._check_cluster()
                self._fill()
        except BaseException as error:
            if self._is_gone() and isinstance(error, Exception) and not isinstance(error, TaskFailedError):
                raise TaskFailedError(_GONE) from error
            if not self._is_gone():
                self._client.cancel([attempt.future for attempt in self._attempts.values()], force=True)
            raise

    def _timeout(self) -> float:
        pause = self._queue.pause()
        return _POLL_SECONDS if pause is None else min(_POLL_SECONDS, pause)

    def _is_gone(self) -> bool:
        return self._client.status in ("closed", "closing")

    def _fill(self) -> None:
        if self._client.status != "running":  # the scheduler is gone; the client looks for it for a while
            return
        now = time.monotonic()
        if now >= self._window_until:
            workers = sum(self._workers.num_threads().values())
            self._job.progress.workers = workers
            self._window = self._window_per_worker() * max(1, workers)
            self._window_until = now + _WINDOW_SECONDS
        tasks: list[Task] = []
        while len(self._attempts) + len(tasks) < self._window and (task := self._queue.take()) is not None:
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
        return max(_WINDOW_PER_WORKER, min(_MOST_PER_WORKER, int(_WINDOW_WORK_SECONDS / max(self._work_seconds, 1e-6))))

    def _run_alone(self) -> None:
        workers = self._workers.preferred()
        if workers:
            suspect = self._suspects.pop()
            suspect.worker = workers[suspect.deaths % len(workers)]
            self._submit([suspect.task], suspect=suspect, workers=[suspect.worker])

    def _submit(self, tasks: Sequence[Task], suspect: _Suspect | None = None, **where: Any) -> None:
        where = where or self._workers.avoiding()
        futures = self._client.map(self._job.attempt_remotely, tasks, pure=False, retries=0, key="run_task", **where)
        for task, future in zip(tasks, futures, strict=True):
            self._attempts[future.key] = _Attempt(task, future, time.monotonic(), suspect)
            future.add_done_callback(self._ended.put)

    def _take_all(self, first: Any) -> None:
        """Take what has ended by now; results that are there are fetched together, each way to the workers takes milliseconds."""
        futures = [first]
        while not self._ended.empty():
            futures.append(self._ended.get())
        fetched = self._fetch([future for future in futures if future.status == "finished" and future.key in self._attempts])
        for future in futures:
            self._take(future, fetched.get(future.key))

    def _fetch(self, futures: Sequence[Any]) -> dict[str, Result | FailedAttempt]:
        """Fetch results together; nothing where that fails, so that each is fetched alone."""
        if len(futures) < 2:
            return {}
        try:
            results = self._client.sync(self._gathered, futures, callback_timeout=min(_RESULT_SECONDS, _LATE_SECONDS))
        except Exception:  # whose fault it is comes out one by one
            return {}
        return {future.key: result for future, result in zip(futures, results, strict=True)}

    async def _gathered(self, futures: Sequence[Any]) -> Any:
        return await self._client.gather(futures, asynchronous=True)

    def _take(self, future: Any, fetched: Result | FailedAttempt | None = None) -> None:
        """Take the end of an attempt: hand on what came of it, or start the task again where the scheduler lost it."""
        attempt = self._attempts.pop(future.key, None)
        if attempt is None:  # a copy of it was faster
            return
        copies = [key for key, other in self._attempts.items() if other.task is attempt.task]
        outcome = fetched if fetched is not None else self._outcome(future)
        if isinstance(outcome, Result):
            self._take_result(attempt, outcome, copies)
        elif copies:  # one of them may do better
            return
        elif outcome is None:
            self._resubmit(attempt.task, future)
        elif isinstance(outcome, FailedAttempt):
            self._take_failure(attempt, outcome)
        else:
            self._take_error(attempt, outcome)

    def _outcome(self, future: Any) -> Result | FailedAttempt | Exception | None:
        """Fetch what a task gave, or the error of the cluster; None where it is lost."""
        if future.status == "error":
            error: Exception = future.exception()
            return error
        if future.status in ("cancelled", "lost"):
            return None
        try:
            outcome: Result | FailedAttempt = future.result(timeout=min(_RESULT_SECONDS, _LATE_SECONDS))
        except (OSError, CancelledError):  # time-outs, broken connections; its worker was lost just now
            return None
        except Exception as error:  # it was lost just now, and so were workers that ran it again; or it cannot be read here
            return error
        return outcome

    def _take_result(self, attempt: _Attempt, result: Result, copies: Sequence[str]) -> None:
        if copies:
            self._client.cancel([self._attempts.pop(key).future for key in copies], force=True)
        attempt.future.release()
        seconds = time.monotonic() - attempt.since
        self._seconds_per_task = seconds if not self._seconds_per_task else 0.9 * self._seconds_per_task + 0.1 * seconds
        self._work_seconds = result.seconds if self._work_seconds is None else 0.9 * self._work_seconds + 0.1 * result.seconds
        self._failed_on.pop(attempt.task.key, None)
        self._queue.end(attempt.task, result)

    def _take_failure(self, attempt: _Attempt, failed: FailedAttempt) -> None:
        """Hand on a failure, and remember where it was if the task comes again."""
        task, future = attempt.task, attempt.future
        if not self._queue.end(task, failed):
            self._failed_on.pop(task.key, None)
            return
        self._failed_on.setdefault(task.key, set()).update(self._workers.holders(future))

    def _take_error(self, attempt: _Attempt, error: Exception) -> None:
        """Take what the cluster says itself: workers died that had the task, or it could not be read."""
        from distributed.scheduler import KilledWorker

        if not isinstance(error, KilledWorker):
            self._queue.end(attempt.task, FailedAttempt(error, gethostname()))
        elif attempt.suspect is None:
            self._suspects.append(_Suspect(attempt.task, error))
        else:
            self._take_death(attempt.suspect)

    def _take_death(self, suspect: _Suspect) -> None:
        """Take the death of a worker that ran one task and nothing else."""
        suspect.deaths += 1
        if suspect.deaths < _MOST_DEATHS:
            self._suspects.append(suspect)
            return
        failure = TaskFailedError(
            f"{suspect.task.name}: given up after the workers that ran it died, the last {suspect.deaths} while they ran nothing else "
            f"(the very last: {suspect.worker}; see its log)"
        )
        failure.__cause__ = suspect.error
        self._queue.end(suspect.task, FailedAttempt(failure, gethostname(), attempts=suspect.error.allowed_failures + 1 + suspect.deaths))

    def _resubmit(self, task: Task, future: Any) -> None:
        """Run a task once more whose result cannot be fetched: the worker that holds it, or the scheduler, is gone, stopped or cut off."""
        self._workers.avoid(self._workers.holders(future))
        future.release()
        self._queue.add([task])

    def _check_cluster(self) -> None:
        """See whether the cluster is still there, and each worker that a task depends on; it may be stopped or cut off."""
        if self._is_gone():
            raise TaskFailedError(_GONE)
        if self._client.status != "running":
            return
        self._watch.check()
        self._check_suspects()
        if not self._queue.has_more():
            self._duplicate_slow_tasks()

    def _check_suspects(self) -> None:
        """See whether the worker is still there that runs one task and nothing else."""
        for key, attempt in list(self._attempts.items()):
            if attempt.suspect is not None and attempt.suspect.worker not in self._workers.num_threads():
                del self._attempts[key]
                self._client.cancel([attempt.future], force=True)
                self._take_death(attempt.suspect)

    def _duplicate_slow_tasks(self) -> None:
        """Start a copy of each task that takes far longer than others did."""
        late = time.monotonic() - max(_LATE_SECONDS, _LATE_FACTOR * self._seconds_per_task)
        copied = Counter(id(attempt.task) for attempt in self._attempts.values())
        slow = {
            key: attempt.task for key, attempt in self._attempts.items() if attempt.since < late and attempt.suspect is None and copied[id(attempt.task)] == 1
        }
        if not slow:
            return
        runs_on = self._workers.running()
        self._workers.avoid(runs_on[key] for key in slow if key in runs_on)
        for key, task in slow.items():
            if key in runs_on and (others := self._workers.preferred(exclude=[runs_on[key]])):
                self._submit([task], **prefer_workers(others))
