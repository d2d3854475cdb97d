"""A dask array of a volume that a local scheduler computes with one read into one array.

dask reads each chunk into an array, and then copies the chunks, or the only one, into another
array. That takes twice the memory, and half as long as decoding LZ4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import dask
import dask.array as da
import dask.local
import dask.threaded
import numpy as np
from dask.base import get_scheduler
from dask.callbacks import Callback

from wkwdask.store.cores import available_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray

_Items = tuple[range | int, ...]


class Reader(Protocol):
    """Source of an array: :class:`wkwdask.graphs.read.BoxReader`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        ...

    def read(self, items: Sequence[slice | int], threads: int = 1) -> AnyArray:
        """Read the selection of a basic index with an item for each axis, on at most some
        threads."""
        ...


class VolumeArray(da.Array):
    """An array of a volume, or a part of it selected by slices without steps and integers.

    Arithmetic, other indices, ``persist``, ``dask.optimize`` and pickling return plain arrays.
    Other schedulers and ``dask.compute`` run its graph, which is that of the plain array.
    """

    _reader: Reader
    _items: _Items
    """Selection along each axis of the reader."""
    _source: str
    """Name of the array that the reader fills; an assignment to items changes the name of the
    array."""

    def __getitem__(self, index: Any) -> da.Array:
        """Select a part."""
        selected = super().__getitem__(index)  # type: ignore[no-untyped-call]
        items = (
            _select(self._items, index if isinstance(index, tuple) else (index,))
            if self._is_stored()
            else None
        )
        return (
            selected
            if selected is self or items is None
            else _with_reader(selected, self._reader, items)
        )

    def compute(self, **kwargs: Any) -> Any:
        """Read the array, or compute its graph where a local scheduler would not do so
        unobserved."""
        threads = (
            _local_threads(**kwargs)
            if self._is_stored() and kwargs.keys() <= {"scheduler", "num_workers"}
            else None
        )
        if threads is None:
            return super().compute(**kwargs)  # type: ignore[no-untyped-call]
        items = tuple(
            item if isinstance(item, int) else slice(item.start, item.stop) for item in self._items
        )
        return self._reader.read(items, threads)

    def _is_stored(self) -> bool:
        return bool(self.name == self._source)


def volume_array(array: da.Array, reader: Reader) -> da.Array:
    """Return an array over all of a reader that is read at once where possible; arrays of dask's
    query planning are returned unchanged."""
    if (
        type(array) is not da.Array
        or hasattr(array, "expr")
        or dask.config.get("array_plugins", None)
    ):
        return array
    return _with_reader(array, reader, tuple(range(n) for n in reader.shape))


def _with_reader(array: da.Array, reader: Reader, items: _Items) -> da.Array:
    result = VolumeArray(array.dask, array.name, array.chunks, meta=array._meta)  # type: ignore[no-untyped-call]
    result._reader, result._items, result._source = reader, items, array.name
    return result


def _select(items: _Items, index: Sequence[Any]) -> _Items | None:
    """Apply a valid index to a selection; None unless it has only integers, slices without steps
    and an ellipsis."""
    kept = sum(isinstance(item, range) for item in items)
    found: list[Any] = []
    for part in index:
        if part is Ellipsis:
            found += [slice(None)] * (kept - len(index) + 1)
        elif (isinstance(part, (int, np.integer)) and not isinstance(part, bool)) or (
            isinstance(part, slice) and part.step in (None, 1)
        ):
            found.append(part)
        else:
            return None
    parts = iter(found)
    selected = tuple(
        item[next(parts, slice(None))] if isinstance(item, range) else item for item in items
    )
    return selected if any(isinstance(item, range) for item in selected) else None


def _local_threads(scheduler: Any = None, num_workers: int | None = None) -> int | None:
    """Return the number of threads of dask's local scheduler; None for other schedulers, for pools
    of the user, and where callbacks watch tasks."""
    if Callback.active or dask.config.get("pool", None) is not None:
        return None
    get = get_scheduler(scheduler=scheduler, cls=da.Array)
    if get is dask.local.get_sync:
        return 1
    return (
        num_workers or dask.config.get("num_workers", None) or available_cores()
        if get is dask.threaded.get
        else None
    )
