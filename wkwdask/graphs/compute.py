"""Runs dask graphs whose results are small objects, and hands each on as soon as it is there."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from socket import gethostname
from typing import TYPE_CHECKING, Any

import dask
import numpy as np

from wkwdask.graphs.runners import active_client, check_reachable, num_workers
from wkwdask.graphs.workers import PauseWatch
from wkwdask.model.receipts import Receipt
from wkwdask.runs.job import FlatJob, Result, Task, give_up
from wkwdask.runs.progress import Progress
from wkwdask.runs.tolerant import Failed, Tolerance, TolerantJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import dask.array as da

    from wkwdask.geometry.mag import Vec3

_LOOK_SECONDS = 5.0


def compute_receipts(graphs: Sequence[da.Array], title: str, take: Callable[[Receipt], None], folder: str | None = None) -> None:
    """Run graphs of receipts."""
    taken: set[Vec3] = set()

    def take_once(value: Any) -> None:
        if isinstance(value, Receipt) and value.part is None and value.shard not in taken:
            taken.add(value.shard)
            take(value)

    for value in compute_values(graphs, title, take_once, folder):
        take_once(value)


def compute_values(graphs: Sequence[da.Array], title: str, early: Callable[[Any], None] = lambda _: None, folder: str | None = None) -> list[Any]:
    """Run graphs of single objects and show the progress."""
    total = sum(int(np.prod(graph.numblocks)) for graph in graphs)
    if folder is not None:
        check_reachable(folder)
    client = active_client()
    with Progress(title, total, folder, num_workers()) as progress:
        if client is not None:
            return _compute_on_client(graphs, client, progress, early)

        def count_all(_: Any, state: Any) -> None:
            progress.set_total(len(state["ready"]) + len(state["waiting"]))

        def count(key: Any, result: Any, *_: Any) -> None:
            progress.advance()
            if isinstance(result, np.ndarray) and result.dtype == object and result.size == 1:
                early(result.item())

        options = {} if dask.base.get_scheduler() is not None else {"scheduler": "threads", "num_workers": num_workers()}
        with dask.callbacks.Callback(start_state=count_all, posttask=count):
            values = dask.compute(*graphs, **options)
        return [item for value in values for item in value.ravel()]


def _compute_on_client(graphs: Sequence[da.Array], client: Any, progress: Progress, early: Callable[[Any], None]) -> list[Any]:
    """Take each object as soon as it is there and let go of it, so that a lost worker takes no finished shard with it.

    What fails keeps only that from being done which depends on it, and is told in the end.
    """
    from distributed import futures_of

    futures = futures_of(client.persist(list(graphs)))
    found: list[Any] = []

    def take(_: Task, result: Result) -> None:
        for item in result.value:
            early(item)
        found.extend(result.value)

    with TolerantJob(FlatJob(lambda: iter(()), len(futures), take), progress, Tolerance()) as job:
        try:
            for future in _as_ended(futures, client):
                _hand_on(job, future)
            job.check()
        except BaseException:
            client.cancel(futures, force=True)
            raise
    return found


def _hand_on(job: TolerantJob, future: Any) -> None:
    """Hand on what a task of a graph gave, or its error; the cluster itself has tried as often as it was told to."""
    task = Task(str(future.key), str(future.key), _run_by_the_cluster, None)
    if future.status != "error":
        job.receive(task, Result((), value=list(future.result().ravel())))
        future.release()
        return
    error = future.exception()
    give_up(error)
    job.fail(task, Failed(error, gethostname()))


def _run_by_the_cluster(spec: None) -> Result:
    raise NotImplementedError


def _as_ended(futures: Sequence[Any], client: Any) -> Iterator[Any]:
    """Give futures as they end, and see meanwhile whether they still can."""
    ended: SimpleQueue[Any] = SimpleQueue()
    for future in futures:
        future.add_done_callback(ended.put)
    watch = PauseWatch(client)
    for _ in futures:
        while True:
            try:
                future = ended.get(timeout=_LOOK_SECONDS)
            except Empty:
                watch.look()
            else:
                break
        yield future
