"""Notices that no worker of a dask cluster can work any more, because the memory of each is full before it begins."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from wkwdask.errors import TaskFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
