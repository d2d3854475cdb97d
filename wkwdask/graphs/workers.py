"""The workers of a dask cluster: which of them tasks should run on, and whether none can work because the memory of each is full."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wkwdask.errors import TaskFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PAUSED_SECONDS = 60.0


class PauseWatch:
    """Looks at the workers now and then, while nothing comes back from them.

    Dask pauses a worker whose memory is nearly full, and lets it go on when tasks that end have made room. A limit below what a worker needs for itself is
    never left again: the job would wait for ever, and say nothing.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._since: float | None = None

    def look(self) -> None:
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

    def good(self, but: Iterable[str] = ()) -> list[str]:
        """Give the workers that are not to be avoided, without some more; where no such are left, without these alone."""
        now = time.monotonic()
        self._avoided = {worker: until for worker, until in self._avoided.items() if until > now}
        others = set(self.num_threads()) - set(but)
        return sorted(others - self._avoided.keys()) or sorted(others)

    def away_from(self, workers: Iterable[str] = ()) -> dict[str, Any]:
        """Say to dask that tasks should rather not run on some workers, nor on those to be avoided."""
        workers = set(workers)
        return rather_on(self.good(workers)) if workers or self._avoided else {}

    def running(self) -> dict[str, str]:
        """Tell which worker has each task; nothing where the scheduler does not answer just now."""
        with suppress(OSError):
            return {key: worker for worker, keys in self._client.processing().items() for key in keys}
        return {}

    def holding(self, future: Any) -> set[str]:
        """Tell which workers have a result; none where the cluster does not say."""
        if self._client.status == "running":
            with suppress(OSError, CancelledError):
                return {worker for workers in self._client.who_has([future]).values() for worker in workers}
        return set()


def rather_on(workers: Sequence[str]) -> dict[str, Any]:
    """Say to dask where tasks should run; when all of these are gone, any will do: a task that may run nowhere would be waited for without end."""
    return {"workers": workers, "allow_other_workers": True} if workers else {}
