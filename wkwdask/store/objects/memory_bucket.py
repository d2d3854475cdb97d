"""Bucket in the memory of this process, ``memory://NAME/KEY``, with the functions of
``object_store``: a dictionary of names without folders, links or renames.

Jobs that work here work in a bucket of a server, so that they can be tried without one.
"""

from __future__ import annotations

import errno
import itertools
import threading
import time
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from wkwdask.errors import CorruptError
from wkwdask.model.store import Expected, State
from wkwdask.store.objects.object_store import Answer
from wkwdask.store.objects.writing import Expectation, Found, RefusedPut
from wkwdask.store.paths import os_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wkwdask.store.objects.access import Access
    from wkwdask.store.objects.object_store import Request

PROTOCOL = "memory"
IS_CONCURRENT = True
_versions = itertools.count(1)


class _Object(NamedTuple):
    data: bytes
    state: State
    modified: float
    writer: str


_objects: dict[str, _Object] = {}
_lock = threading.RLock()


def check(url: str, access: Access) -> None:
    """Return: every URL can be read."""
    del url, access


def read(request: Request, access: Access) -> Answer:
    """Read an object or a byte range."""
    found = _found(request.url, access)
    nbytes, start, stop = len(found.data), request.start, request.stop
    if request.largest is not None and nbytes > request.largest:
        raise CorruptError(f"{request.url}: has {nbytes} bytes, expected at most {request.largest}")
    data = found.data if start is None else found.data[start:stop]
    return Answer(data, nbytes, found.state.etag, state=found.state)


def size(url: str, access: Access) -> int:
    """Return the size of an object."""
    return len(_found(url, access).data)


def names(url: str, access: Access) -> list[tuple[str, int | None]]:
    """List the names in a folder with the sizes of files, None for folders."""
    found: dict[str, int | None] = {}
    for key, nbytes in walk(url, access):
        name, slash, _ = key.partition("/")
        found[name] = None if slash else nbytes
    return list(found.items())


def walk(url: str, access: Access) -> Iterator[tuple[str, int]]:
    """Yield names and sizes of all objects below a URL."""
    del access
    prefix = f"{url}/"
    with _lock:
        found = sorted(
            (key.removeprefix(prefix), len(each.data))
            for key, each in _objects.items()
            if key.startswith(prefix)
        )
    return iter(found)


def head(url: str, access: Access) -> Found | None:
    """Return an object without its content; None if it is absent."""
    del access
    found = _objects.get(url)
    return (
        None if found is None else Found(found.state, len(found.data), found.modified, found.writer)
    )


def put_once(
    url: str, data: bytes | BinaryIO, expect: Expectation, writer: str, access: Access
) -> State:
    """Store an object; raises RefusedPut if it is not as expected."""
    del access
    if not isinstance(data, bytes):
        data.seek(0)
    content = data if isinstance(data, bytes) else data.read()
    with _lock:
        before = _objects.get(url)
        if expect is not Expected.ANY and (
            before is not None
            if expect is Expected.ABSENT
            else before is None or before.state != expect
        ):
            raise RefusedPut
        state = State(None, str(next(_versions)))
        _objects[url] = _Object(content, state, time.time(), writer)
    return state


def copy_once(source: str, url: str, access: Access) -> None:
    """Copy an object; raises RefusedPut if the name is taken."""
    found = _found(source, access)
    with _lock:
        if url in _objects:
            raise RefusedPut
        state = State(None, str(next(_versions)))
        _objects[url] = found._replace(state=state, modified=time.time())


def delete(urls: Sequence[str], access: Access) -> None:
    """Delete objects; absent ones are no error."""
    del access
    with _lock:
        for url in urls:
            _objects.pop(url, None)


def _found(url: str, access: Access) -> _Object:
    del access
    found = _objects.get(url)
    if found is None:
        raise os_error(errno.ENOENT, url)
    return found
