"""Reading the bytes of a chunk for codecs that decode parts of it, with an event loop or without one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.abc.store import RangeByteRequest
from zarr.storage import LocalStore

from wkwdask.errors import FormatError, TruncatedError, UnsupportedError
from wkwdask.geometry.bounding_box import BoundingBox

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    import numpy.typing as npt
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer


def boxed(selection: Any, shape: tuple[int, ...]) -> tuple[BoundingBox, Any]:
    """Find the box around a selection.

    Examples
    --------
    >>> box, rest = boxed((slice(2, 9, 3), 5, slice(0, 4)), (16, 16, 16))
    >>> box.topleft, box.size, rest
    ((0, 5, 2), (4, 1, 7), (slice(0, 7, 3), 0, slice(0, 4, 1)))
    """
    chosen = selection if isinstance(selection, tuple) else (selection,)
    at = next((n for n, one in enumerate(chosen) if one is Ellipsis), None)
    if at is not None:
        chosen = (*chosen[:at], *[slice(None)] * (len(shape) - len(chosen) + 1), *chosen[at + 1 :])
    chosen = (*chosen, *[slice(None)] * (len(shape) - len(chosen)))
    spans, rest = [], []
    for one, length in zip(chosen, shape, strict=True):
        low, high, picked = _span(one, length)
        spans.append((low, high))
        rest.append(picked)
    if len(shape) == 4:
        rest[0] = chosen[0]
    (z, to_z), (y, to_y), (x, to_x) = spans[-3:]
    return BoundingBox.from_corners((x, y, z), (to_x, to_y, to_z)), tuple(rest)


def _span(one: Any, length: int) -> tuple[int, int, Any]:
    """Give the interval of one axis, and what is selected of it."""
    if isinstance(one, slice):
        start, stop, step = one.indices(length)
        count = len(range(start, stop, step))
        if not count:
            return 0, 0, slice(0, 0, 1)
        last = start + (count - 1) * step
        low, high = min(start, last), max(start, last) + 1
        if step > 0:
            return low, high, slice(0, high - low, step)
        return low, high, slice(None, None, step)
    if isinstance(one, (int, np.integer)):
        at = int(one) + (length if one < 0 else 0)
        return at, at + 1, 0
    places = np.asarray(one)
    if places.dtype == np.bool_:
        places = np.flatnonzero(places).reshape([-1 if n > 1 else 1 for n in places.shape] if places.ndim > 1 else -1)
    if not places.size:
        return 0, 0, places.astype(np.intp)
    places = np.where(places < 0, places + length, places)
    low = int(places.min())
    return low, int(places.max()) + 1, places - low


SOURCE = "<chunk>"
"""What errors call it while it is not known which one it is."""
_MOST_REQUESTS = 8  # of one chunk at once; zarr reads several chunks at once


class Blocking:
    """What chunks are read from, without an event loop: coroutines that use it never wait."""

    def __init__(self, getter: Any) -> None:
        self._getter, self.store, self.path = getter, getattr(getter, "store", None), getattr(getter, "path", None)
        if hasattr(getter, "shard_dict"):
            self.shard_dict = getter.shard_dict

    async def get(self, prototype: Any, byte_range: Any = None) -> Any:
        """Read bytes."""
        return self._getter.get_sync(prototype=prototype, byte_range=byte_range)


@contextlib.contextmanager
def naming(getter: Any) -> Iterator[None]:
    """Put the name of a chunk into errors about what is stored: zarr tells it where parts of chunks are read."""
    try:
        yield
    except (FormatError, UnsupportedError) as error:
        path, root = getattr(getter, "path", None), getattr(getter.store, "root", None) if is_local(getter) else getattr(getter, "store", None)
        if not path or not str(error).startswith(SOURCE):
            raise
        raise type(error)(f"{root}/{path}{str(error).removeprefix(SOURCE)}") from None


def is_local(getter: Any) -> bool:
    """Tell whether pieces of files can be read for nothing, so that memory is reused piece by piece."""
    return isinstance(getattr(getter, "store", None), LocalStore)


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a chunk was read without an event loop, and waited for something")


async def run(getter: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that takes a while: beside the event loop, where there is one."""
    return function(*arguments) if isinstance(getter, Blocking) else await asyncio.to_thread(function, *arguments)


async def fetch(getter: Any, spec: ArraySpec, ranges: npt.NDArray[np.int64], nbytes: int) -> npt.NDArray[np.uint8]:
    """Read byte ranges, some at once, into one piece of memory."""
    rows = ranges.tolist()
    if len(rows) == 1:
        return await _get_all(getter, spec, rows[0][0], rows[0][2])
    memory = np.empty(nbytes, np.uint8)
    for start in range(0, len(rows), _MOST_REQUESTS):
        some = rows[start : start + _MOST_REQUESTS]
        wanted = [_get_all(getter, spec, offset, length) for offset, _, length in some]
        parts = [await one for one in wanted] if isinstance(getter, Blocking) else await asyncio.gather(*wanted)
        for (_, place, length), part in zip(some, parts, strict=True):
            memory[place : place + length] = part
    return memory


async def _get_all(getter: Any, spec: ArraySpec, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
    data = await _get_array(getter, spec, offset, nbytes)
    if data is None or len(data) != nbytes:
        found = "is gone" if data is None else f"ends at byte {offset + len(data)}{'' if len(data) else ' or before'}"
        raise TruncatedError(f"{SOURCE}: {found}, expected {nbytes} bytes from byte {offset} on")
    return data


async def get(getter: Any, spec: ArraySpec, offset: int, nbytes: int) -> bytes | None:
    """Read some bytes of a chunk, fewer where it ends before; None where there is none."""
    data = await _get_array(getter, spec, offset, nbytes)
    return None if data is None else data.tobytes()


async def _get_array(getter: Any, spec: ArraySpec, offset: int, nbytes: int) -> npt.NDArray[np.uint8] | None:
    if not nbytes:
        return np.empty(0, np.uint8)
    data: Buffer | None = await getter.get(spec.prototype, RangeByteRequest(offset, offset + nbytes))
    return None if data is None else bytes_of(data)


def bytes_of(data: Buffer) -> npt.NDArray[np.uint8]:
    """Give the memory of a buffer, as compiled loops take it: they are compiled for memory that may be written, and only read it."""
    array: npt.NDArray[np.uint8] = np.ascontiguousarray(data.as_numpy_array()).view(np.uint8).reshape(-1)
    return array if array.flags.writeable or not array.size else np.asarray(_Memory(array))


class _Memory:
    """Memory of an array that cannot be written, without that mark."""

    def __init__(self, array: npt.NDArray[np.uint8]) -> None:
        self._array = array  # which keeps it
        self.__array_interface__ = {**array.__array_interface__, "data": (array.__array_interface__["data"][0], False)}
