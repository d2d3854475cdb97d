"""Objects of a bucket as one task has first seen them, so that it can replace those that are still
the same."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from wkwdask.errors import LockedError, MissingError
from wkwdask.model.store import Conflict, Expected
from wkwdask.store.objects.object_store import Answer, Request
from wkwdask.store.objects.writing import Found
from wkwdask.store.paths import os_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wkwdask.model.store import State
    from wkwdask.store.objects.access import Access
    from wkwdask.store.objects.writing import Expectation


class SeenObjects:
    """Functions of the module of a bucket. Each object is requested once, whole, and stays as it
    was then; raises Conflict if it has changed between the two requests for its state and its
    content."""

    def __init__(self, module: Any, record: str) -> None:
        self._module = module
        self._record = record
        self.IS_CONCURRENT = module.IS_CONCURRENT
        self._contents: dict[str, Answer | None] = {}
        self._states: dict[str, Found | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def read(self, request: Request, access: Access) -> Answer:
        """Read an object or a byte range."""
        url, start, stop, _, largest = request
        if url not in self._contents:
            self._contents[url] = self._whole(url, largest, access)
        answer = self._contents[url]
        if answer is None:
            raise os_error(errno.ENOENT, url)
        return answer if start is None else answer._replace(data=answer.data[start:stop])

    def _whole(self, url: str, largest: int | None, access: Access) -> Answer | None:
        answer: Answer | None
        try:
            answer = self._module.read(Request(url, largest=largest), access)
        except MissingError:  # there is no such bucket
            raise
        except FileNotFoundError:
            answer = None
        if url in self._states:
            found = self._states[url]
            if (found and found.state) != (answer and answer.state):
                raise Conflict(url)
        return answer

    def head(self, url: str, access: Access) -> Found | None:
        """Return an object without its content; None if it is absent."""
        if url in self._contents and url not in self._states:
            answer = self._contents[url]
            return None if answer is None else Found(answer.state, len(answer.data), 0.0, "")
        if url not in self._states:
            self._states[url] = self._module.head(url, access)
        return self._states[url]

    def size(self, url: str, access: Access) -> int:
        """Return the size of an object."""
        found = self.head(url, access)
        if found is None:
            raise os_error(errno.ENOENT, url)
        return found.nbytes

    def expected(self, url: str, access: Access) -> Expectation:
        """Return what a put of an object must find."""
        found = self.head(url, access)
        return Expected.ABSENT if found is None else found.state

    def has(self, url: str, data: object) -> bool:
        """Check whether an object was read, and has some content already."""
        answer = self._contents.get(url)
        return answer is not None and answer.data == data

    def check_job(self, access: Access) -> None:
        """Raise LockedError if the job has ended in another process, whose shards others may write
        now."""
        if self._record and self._module.head(self._record, access) is None:
            raise LockedError(
                f"{self._record}: another process has taken this job over; this one ends"
            )

    def check_unchanged(self, url: str, access: Access) -> None:
        """Raise Conflict if an object is not as it was first seen."""
        expected, found = self.expected(url, access), self._module.head(url, access)
        if expected != (Expected.ABSENT if found is None else found.state):
            raise Conflict(url)

    def drop(self, urls: Iterable[str]) -> None:
        """Take objects for deleted ones."""
        absent = dict.fromkeys(urls)
        self._contents.update(absent)
        self._states.update(absent)

    def keep(self, url: str, state: State, nbytes: int) -> None:
        """Take an object for one that this process has stored."""
        self._contents.pop(url, None)
        self._states[url] = Found(state, nbytes, 0.0, "")
