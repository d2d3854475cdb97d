"""Leases: the records by which jobs in buckets own their work, and commit it.

A lease is an object that its job replaces every half minute, each time on condition that nobody
else has replaced it in between. A lease that was not renewed for two minutes, by the clock of the
server, is over, and another process may take it over in the same way. That alone is no fence: a
process that was paused for long still believes that it holds the lease. So

1. a job commits by a renewal of its lease that states what is to be published. From then on
   the holder of the lease completes the publication, and before it nobody begins;
2. a document changes only after the lease was renewed between reading and writing it, and only if
   it is still what was read.

A process that wakes up after another took over is refused by the first of these, and a document
that it has read before is by then another one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import threading
import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from wkwdask.errors import LockedError, UnsupportedError
from wkwdask.model.json_text import parse_object
from wkwdask.model.store import Conflict, Expected, State
from wkwdask.store.objects import remote, writing
from wkwdask.store.objects.access import access_of
from wkwdask.store.objects.remote import RemoteStore, is_known_absent
from wkwdask.store.paths import PROBE_PREFIX, dirname, is_bucket, split
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wkwdask.model.store import Store

TTL_SECONDS = 120.0
HANDED_SECONDS = 30 * 24 * 3600.0
"""Age at which a lease that was handed to a SLURM job is over, though SLURM may not have said so:
nobody renews it while the job waits in the queue."""
_RENEWED_AFTER_SECONDS = TTL_SECONDS / 4
_MARGIN_SECONDS = 2.0  # servers state whole seconds
_MAX_NBYTES = 1 << 24
COMMIT = "publishes"
"""Field of what a job has committed to."""
_FIELDS = ("epoch", "nonce", "ended", COMMIT)


class Lease:
    """Lease that this process holds."""

    def __init__(self, path: str, record: dict[str, Any], state: State | None) -> None:
        self.path = path
        self.record = record
        self.taken = time.time()
        """When this process took it [s since the epoch]."""
        self.renewed = -math.inf
        """When this process sent the last renewal that the server accepted, by the monotonic clock
        [s]."""
        self._state = state
        self._tried = ""
        """Nonce of the last write, whose answer may be lost."""
        self._lock = threading.Lock()

    @property
    def is_first(self) -> bool:
        """Whether the lease was taken once, so that its job has begun just now."""
        return self.record.get("epoch") == 1

    def renew(self, **changes: Any) -> None:
        """Write the lease with some changes; raises LockedError if another process holds it."""
        folder, name = split(self.path)
        with self._lock:
            sent = time.monotonic()
            nonce = secrets.token_hex(8)
            record = {**self.record, **changes, "nonce": nonce}
            data = json.dumps(record).encode()
            try:
                try:
                    self._put(folder, name, data)
                except Conflict:
                    found = _read(self.path)
                    if found is None or not self._tried or found[0].get("nonce") != self._tried:
                        raise
                    self._state = found[1]  # an earlier write of this process, without an answer
                    self._put(folder, name, data)
            except Conflict:
                _held.pop(self.path, None)
                raise LockedError(
                    f"{self.path}: another process has taken this job over; this one ends"
                ) from None
            finally:
                self._tried = nonce
            self.record, self.renewed = record, sent

    def _put(self, folder: str, name: str, data: bytes) -> None:
        expect = Expected.ABSENT if self._state is None else self._state
        self._state = store_at(folder).put(name, data, expect)


_held: dict[str, Lease] = {}
_renewer: threading.Thread | None = None


def read_lease(path: str) -> dict[str, Any] | None:
    """Read the record of a lease; None if it is absent."""
    lease = _held.get(path)
    if lease is not None:
        return lease.record
    found = _read(path)
    return None if found is None else found[0]


def _read(path: str) -> tuple[dict[str, Any], State] | None:
    folder, name = split(path)
    found = store_at(folder).read_state(name, _MAX_NBYTES)
    return None if found is None else (parse_object(found[0], path), found[1])


def held(path: str) -> Lease | None:
    """Return a lease that this process holds."""
    return _held.get(path)


_NO_STATE = State('"0123456789abcdef0123456789abcdef"', "1")
_probed: set[str] = set()
"""Buckets that have proved that they honour conditions."""
_probed_copies: set[str] = set()
"""Buckets that have proved that they honour those of copies."""


def has_single_writer(folder: str) -> bool:
    """Check whether the user has said that one process at a time writes to a bucket, which then
    need not honour conditions. Nothing that may be in use is removed there."""
    return is_bucket(folder) and access_of(folder).single_writer


def check_conditions(folder: str) -> None:
    """Raise UnsupportedError unless a bucket refuses what a conditional write must not do; asked
    once for each bucket and process."""
    bucket = "/".join(folder.split("/", 3)[:3])
    if bucket in _probed or has_single_writer(folder):
        return
    store, name = store_at(folder), f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    try:
        first = store.put(name, b"1", Expected.ABSENT)
        wrong: list[State | Expected] = [Expected.ABSENT, _NO_STATE]
        refuses = all(remote.for_all(partial(_is_refused, store, name), wrong))
        accepts = first is not None and not _is_refused(store, name, first)
    finally:
        store.delete(name)
    if not refuses or not accepts:
        raise UnsupportedError(
            f"{bucket}: the server {'does not honour' if accepts else 'refuses'} conditional "
            "writes (If-None-Match, If-Match), without which two jobs could destroy each other's "
            "work; if no other process writes there, the storage option single_writer allows it"
        )
    _probed.add(bucket)


def check_copies(folder: str) -> None:
    """Raise UnsupportedError unless a bucket refuses to copy an object over another; asked once for
    each bucket and process."""
    bucket = "/".join(folder.split("/", 3)[:3])
    if bucket in _probed_copies or has_single_writer(folder):
        return
    store, name = store_at(folder), f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    assert isinstance(store, RemoteStore)
    names = [f"{name}-{each}" for each in ("source", "taken", "free")]
    try:
        for content, each in enumerate(names[:2]):
            store.put(each, bytes([content]))
        for each in names[1:]:
            url = store.path_of(each)
            writing.copy(store.client, store.path_of(names[0]), url, store.access)
        found = store.read_whole(names, 1)
    finally:
        store.delete(*names)
    if found != [b"\0", b"\1", b"\0"]:
        raise UnsupportedError(
            f"{bucket}: the server does not honour conditional copies (If-None-Match), without "
            "which two jobs could destroy each other's work; if no other process writes there, "
            "the storage option single_writer allows it"
        )
    _probed_copies.add(bucket)


def _is_refused(store: Store, name: str, expect: State | Expected) -> bool:
    try:
        store.put(name, b"2", expect)
    except Conflict:
        return True
    return False


def take_lease(
    path: str, record: dict[str, Any], is_gone: Callable[[dict[str, Any]], bool]
) -> None:
    """Create a lease, or take over one whose holder is gone; what it commits to stays."""
    lease = _held.get(path)
    if lease is not None:
        lease.renew(**record, epoch=_epoch(lease.record) + 1)
        return
    check_conditions(dirname(dirname(path)))
    found = None if is_known_absent(path) else _read(path)  # a new job has a new name
    if found is not None and not is_gone(without_fields(found[0])):
        raise LockedError(f"{path}: another process works on this job: {describe(found[0])}")
    before, state = ({}, None) if found is None else found
    lease = Lease(path, {**before, **record}, state)
    lease.renew(ended=False, epoch=_epoch(before) + 1)
    _held[path] = lease
    _start_renewing()


def _epoch(record: dict[str, Any]) -> int:
    """Return how often a lease was taken."""
    epoch = record.get("epoch")
    return epoch if isinstance(epoch, int) else 0


def without_fields(record: dict[str, Any]) -> dict[str, Any]:
    """Return the owner in the record of a lease."""
    return {name: value for name, value in record.items() if name not in _FIELDS}


def describe(record: dict[str, Any]) -> str:
    """Name the holder of a lease, for errors."""
    return (
        f"{record.get('command')} by {record.get('user')}, process {record.get('pid')} on "
        f"{record.get('host')}, since {record.get('since')}"
    )


def end_lease(path: str) -> None:
    """Release a lease, so that the next process need not wait."""
    lease = _held.pop(path, None)
    if lease is not None:
        with contextlib.suppress(LockedError):
            lease.renew(ended=True)


def drop_lease(path: str) -> None:
    """Stop renewing a lease whose object is deleted, or handed to another owner."""
    _held.pop(path, None)


def is_over(path: str) -> bool:
    """Check whether a lease is absent, was given back, or was not renewed for long: longer if it
    was handed to a SLURM job, whatever its locks say, which are written before."""
    if path in _held:
        return False
    record = read_lease(path)
    if record is None or record.get("ended") is True:
        return True
    age = _age_seconds(path)
    ttl_seconds = HANDED_SECONDS if record.get("pid") == 0 else TTL_SECONDS
    return age is None or age > ttl_seconds + _MARGIN_SECONDS


def _age_seconds(path: str) -> float | None:
    """Return the time since an object was written, by the clock of the server; None if it is
    absent."""
    folder, name = split(path)
    store = store_at(folder)
    written = store.written_at(name)
    if written is None:
        return None
    try:
        return store_at(dirname(folder)).now() - written
    except PermissionError:  # who may not write cannot take a job over
        return 0.0


_fence: ContextVar[str | None] = ContextVar("wkwdask_fence", default=None)


@contextlib.contextmanager
def fenced_by(path: str) -> Iterator[None]:
    """Let all changes of documents in this block depend on a lease."""
    token = _fence.set(path)
    try:
        yield
    finally:
        _fence.reset(token)


def is_fenced() -> bool:
    """Check whether changes of documents depend on a lease."""
    return _fence.get() is not None


def check_fence(read: float | None = None) -> None:
    """Renew the lease on which a change of a document depends, unless it was renewed since the
    document was ``read`` [s of the monotonic clock]; raises LockedError if it is lost."""
    path = _fence.get()
    if path is None:
        return
    lease = _held.get(path)
    if lease is None:
        raise LockedError(f"{path}: another process has taken this job over; this one ends")
    if read is None or lease.renewed <= read:
        lease.renew()


def _start_renewing() -> None:
    global _renewer
    if _renewer is None or not _renewer.is_alive():
        _renewer = threading.Thread(
            target=_renew_all, args=(_held,), name="wkwdask-leases", daemon=True
        )
        _renewer.start()


def _renew_all(held: dict[str, Lease]) -> None:
    while held:
        time.sleep(_RENEWED_AFTER_SECONDS)
        for lease in list(held.values()):
            # a server that does not answer is asked again in time; what is lost shows at the commit
            with contextlib.suppress(Exception):
                lease.renew()


def _forget_all() -> None:
    global _renewer
    _held.clear()
    _renewer = None


os.register_at_fork(after_in_child=_forget_all)
