"""The workers of a dask cluster: how many there are, and which of them should get a task."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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
