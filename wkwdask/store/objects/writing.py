"""Writes to buckets: conditional puts that settle their own outcome.

A server may store an object and lose the answer; the client then asks again, and the repeated
request is refused, because of the object that the first one stored. So each put carries a token as
metadata of the object, by which a refused put recognises its own success.
"""

from __future__ import annotations

import errno
import random
import secrets
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from wkwdask.model.store import Conflict, Expected, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.store.objects.access import Access

Expectation = State | Expected
_PAUSES_SECONDS = (0.0, 0.05, 0.2, 0.8, 2.0)


class Found(NamedTuple):
    """Object without its content."""

    state: State
    nbytes: int
    modified: float
    """Time of the last write by the clock of the server [s since the epoch]."""
    writer: str
    """Token of the put that wrote it."""


class RefusedPut(Exception):  # noqa: N818
    """The server refused a conditional put."""

    def __init__(self, *, may_repeat: bool = False) -> None:
        super().__init__()
        self.may_repeat = may_repeat
        """Whether another request is in progress, so that the same put may succeed later."""


class Writing(Protocol):
    """Module that writes objects of one kind of bucket."""

    def head(self, url: str, access: Access) -> Found | None:
        """Return an object without its content; None if it is absent."""

    def put_once(
        self,
        url: str,
        data: bytes | BinaryIO,
        expect: Expectation,
        writer: str,
        access: Access,
    ) -> State:
        """Store an object; raises :class:`RefusedPut`, or OSError if the outcome is unknown."""

    def copy_once(self, source: str, url: str, access: Access) -> None:
        """Copy an object inside of its bucket; raises :class:`RefusedPut` if the name is taken,
        unless there is a single writer, or OSError if the outcome is unknown."""

    def delete(self, urls: Sequence[str], access: Access) -> None:
        """Delete objects; absent ones are no error."""


def put(
    client: Writing, url: str, data: bytes | BinaryIO, expect: Expectation, access: Access
) -> State:
    """Store an object if it is as expected; raises :class:`Conflict` if not."""
    if access.single_writer and expect is not Expected.ANY:
        if not _is_expected(client.head(url, access), expect):
            raise Conflict(url)
        expect = Expected.ANY
    token = secrets.token_hex(12)
    for pause in _PAUSES_SECONDS:
        time.sleep(pause * random.uniform(0.5, 1))
        try:
            return client.put_once(url, data, expect, token, access)
        except RefusedPut as refusal:
            found = client.head(url, access)
            if found is not None and found.writer == token:
                return found.state  # an earlier try, whose answer was lost
            if refusal.may_repeat and _is_expected(found, expect):
                continue
            raise Conflict(url) from None
        except PermissionError:  # asking for the object would be refused, too
            raise
        except OSError as error:
            if expect is Expected.ANY or error.errno == errno.ENOSPC:
                raise
            found = client.head(url, access)
            if found is not None and found.writer == token:
                return found.state
            if not _is_expected(found, expect):
                raise Conflict(url) from None
            if pause == _PAUSES_SECONDS[-1]:
                raise
    if expect is Expected.ANY:  # nobody else's state is in the way
        raise OSError(errno.EAGAIN, "the server refuses each write with status 409", url)
    raise Conflict(url)


def copy(client: Writing, source: str, url: str, access: Access) -> None:
    """Copy an object inside of its bucket, unless the name is taken: by an earlier copy, whose
    answer may have been lost."""
    if access.single_writer and client.head(url, access) is not None:
        return None
    for number, pause in enumerate(_PAUSES_SECONDS, 1):
        time.sleep(pause * random.uniform(0.5, 1))
        try:
            return client.copy_once(source, url, access)
        except RefusedPut:
            return None
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if number == len(_PAUSES_SECONDS):
                raise
    return None


def _is_expected(found: Found | None, expect: Expectation) -> bool:
    """Check whether an object is still as a put expects it."""
    if expect is Expected.ANY:
        return True
    return (
        found is None if expect is Expected.ABSENT else found is not None and found.state == expect
    )


def stamp_of(state: State) -> int:
    """Return a number of 63 bits for a state, as its modification time."""
    text = f"{state.etag}\n{state.version}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1
