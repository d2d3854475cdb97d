"""Tasks and results as bytes, so that the scheduler of a cluster passes them on without unpickling
them.

Arrays, targets and passes are most of a task, and tasks share them. They are pickled once in a job,
and unpickled once in each worker process.
"""

from __future__ import annotations

import io
import pickle
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from wkwdask.model.stored_array import StoredArray
from wkwdask.model.writing.target_array import TargetArray
from wkwdask.plans.pyramid import Pass

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARED = (StoredArray, TargetArray, Pass)
_MOST_SHARED = 256
_MOST_SENT_NBYTES = 1 << 13  # the scheduler keeps the last 1000 messages of a topic


class Packer:
    """Pickles the tasks of a job."""

    def __init__(self) -> None:
        # the object is kept, so that no other one gets its id
        self._shared: dict[int, tuple[Any, bytes]] = {}

    def pack(self, function: Callable[[Any], Any], task: Any) -> bytes:
        """Pickle a call; functions and classes of the main script by value."""
        output = io.BytesIO()
        try:
            _Pickler(output, self._pack_shared).dump((function, task))
        except Exception:
            return _dumps((function, task))
        data = output.getvalue()
        return _dumps((function, task)) if b"__main__" in data else data

    def _pack_shared(self, value: Any) -> bytes:
        known = self._shared.get(id(value))
        if known is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()
            known = self._shared[id(value)] = (value, _dumps(value))
        return known[1]


class _Pickler(pickle.Pickler):
    def __init__(self, output: io.BytesIO, pack_shared: Callable[[Any], bytes]) -> None:
        super().__init__(output, pickle.HIGHEST_PROTOCOL)
        self._pack_shared = pack_shared

    def reducer_override(self, value: Any) -> Any:
        return (
            (_unpack_shared, (self._pack_shared(value),))
            if isinstance(value, _SHARED)
            else NotImplemented
        )


@lru_cache(_MOST_SHARED)
def _unpack_shared(data: bytes) -> Any:
    return pickle.loads(data)


def _dumps(value: Any) -> bytes:
    from distributed.protocol.pickle import dumps

    data: bytes = dumps(value)
    return data


def run_packed(data: bytes, topic: str = "") -> bytes:
    """Run a packed call, and return its packed result. On a worker, also send a small one to the
    subscribers of a topic of the scheduler."""
    function, task = pickle.loads(data)
    result = _dumps(function(task))
    if topic and len(result) <= _MOST_SENT_NBYTES:
        from distributed import get_worker

        worker = get_worker()
        worker.log_event(topic, (worker.get_current_task(), result))
    return result
