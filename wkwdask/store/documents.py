"""Documents that list data: the only way in which they change, and what reads them.

A document that is a symbolic link inside its folder, as versioned metadata have it, is kept, and
its target is replaced. A link to a document elsewhere is replaced itself: that one describes other
files.
"""

from __future__ import annotations

import contextlib
import errno
import random
import secrets
import time
from typing import TYPE_CHECKING, Any

from wkwdask.errors import FormatError, LockedError, MissingError, WkwDaskError
from wkwdask.model.json_text import format_json, parse_object
from wkwdask.model.store import Conflict, Expected
from wkwdask.store import by_path, files
from wkwdask.store.leases import check_conditions, check_fence, is_fenced
from wkwdask.store.locks import lock_path, locked_file, remove_dead_lock
from wkwdask.store.looks import look_began
from wkwdask.store.lru import LruCache
from wkwdask.store.new_files import publish_bytes
from wkwdask.store.objects import remote
from wkwdask.store.objects.remote import RemoteStore
from wkwdask.store.paths import basename, dirname, is_below, join, split
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wkwdask.model.store import State, Store

_MAX_NBYTES = 1 << 28
_MAX_TURNS = 200
_created: LruCache[State] = LruCache(1 << 10)
"""States of the objects that this process has created."""


def read_object(store: Store, name: str) -> dict[str, Any] | None:
    """Read the object in a JSON file; None if the file is absent, unreadable or holds something
    else."""
    try:
        (raw,) = read_documents(store, [name], _MAX_NBYTES)
        return None if raw is None else parse_object(raw, store.path_of(name))
    except (OSError, FormatError):
        return None


def read_documents(store: Store, names: Sequence[str], largest: int) -> list[bytes | None]:
    """Read documents, None for absent ones; in a bucket each once in a look."""
    if not store.can.compares or look_began() is None:
        return store.read_whole(names, largest)
    assert isinstance(store, RemoteStore)
    return [known.content for known in store.read_known(names, largest)]


def update_document(
    store: Store, name: str, change: Callable[[bytes | None], bytes | None], what: str = ""
) -> None:
    """Change a document under a lock, atomically; no process that changes it by this function
    overwrites the change of another.

    ``change`` gets the content, or None for an absent document, and returns the new content, or
    None to leave the document unchanged. ``what`` names the change for those that wait for it.
    """
    if store.can.compares:
        _compare_and_swap(store, name, change)
        return
    path = _replaced_file(store, name)
    with locked_file(path, what or f"change of {path}"):
        by_path.remove_temporaries(*split(path))  # their writers held this lock, so they have ended
        raw = store.read_whole([name], _MAX_NBYTES)[0] if store.exists(name) else None
        after = change(raw)
        if after is not None and after != raw:
            publish_bytes(path, after)


def replace_document(store: Store, name: str, data: bytes) -> None:
    """Write a document over any earlier one, atomically, without leftovers of killed writers."""
    if store.can.compares:
        store.put(name, data)
        return
    check_replaceable(store, name, "folder")
    update_document(store, name, lambda _: data)


def _compare_and_swap(
    store: Store, name: str, change: Callable[[bytes | None], bytes | None]
) -> None:
    """Change a document in a bucket: read it, renew the lease of the job, and write it if it is
    still the one that was read; else do all of it again."""
    check_conditions(store.url)
    assert isinstance(store, RemoteStore)
    for turn in range(_MAX_TURNS):
        # what this look has read is tried first: a conflict shows that it has changed
        is_fresh = turn > 0 or look_began() is None or not is_fenced()
        (found,) = store.read_known([name], _MAX_NBYTES, is_fresh=is_fresh)
        before, error = found.content, None
        try:
            after = change(before)
        except WkwDaskError as raised:
            after, error = before, raised
        if after is None or (before is not None and after.rstrip() == before.rstrip()):
            if before is None or not is_fenced():
                break
            after = before  # only a put proves that this was no old version
        check_fence(found.read)
        try:
            store.put(name, _unique(after), found.state or Expected.ABSENT)
        except Conflict:
            time.sleep(random.uniform(0, min(0.5, 0.01 * 1.3 ** min(turn, 20))))
        else:
            break
    else:
        raise LockedError(
            f"{store.path_of(name)}: other processes change it all the time; try again"
        )
    if error is not None:
        raise error


def create_objects(objects: Mapping[str, bytes]) -> None:
    """Store documents and records of new levels in a bucket, by their paths; those that an earlier
    start of the job has stored stay."""

    def create(path: str) -> None:
        folder, name = split(path)
        with contextlib.suppress(Conflict):
            state = store_at(folder).put(name, objects[path], Expected.ABSENT)
            if state is not None:
                _created.put(path, state)

    remote.for_all(create, list(objects))


def replace_records(records: Mapping[str, bytes], new: str = "") -> None:
    """Store the records of levels in a bucket, by their paths: read them, renew the lease of the
    job, and write each if it is still the one that was read; else do all of it again. Those that
    this process has created, and those of the name ``new``, are not read at first."""
    left = list(records)
    for turn in range(_MAX_TURNS):
        is_first = turn == 0

        def state_of(path: str, *, is_first: bool = is_first) -> State | Expected:
            known = Expected.ABSENT if basename(path) == new else _created.get(path)
            if is_first and known is not None:
                return known
            found = store_at(dirname(path)).read_state(basename(path), 1 << 32)
            return Expected.ABSENT if found is None else found[1]

        states = dict(zip(left, remote.for_all(state_of, left), strict=True))
        check_fence()

        def is_refused(path: str, states: Mapping[str, State | Expected] = states) -> bool:
            folder, name = split(path)
            try:
                store_at(folder).put(name, records[path], states[path])
            except Conflict:
                return True
            return False

        refused = remote.for_all(is_refused, left)
        left = [path for path, again in zip(left, refused, strict=True) if again]
        if not left:
            return
    raise LockedError(f"{left[0]}: other processes change it all the time; try again")


def _unique(document: bytes) -> bytes:
    """Append white space that no other version of a document has.

    Some servers name a state by a digest of the content: a document that returns to an earlier
    content would return to an earlier state, and a write that expects that state would succeed.
    """
    bits = f"{secrets.randbits(64):064b}"
    return document.rstrip() + b"\n" + bits.replace("0", " ").replace("1", "\t").encode() + b"\n"


def update_json(
    store: Store,
    name: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    new: dict[str, Any] | None = None,
    *,
    parse: Callable[[bytes, str], dict[str, Any]] = parse_object,
    format_document: Callable[[dict[str, Any]], str] = format_json,
) -> None:
    """Change a JSON document, see :func:`update_document`; ``new`` is what an absent one is taken
    for. A document that does not change is not written, nor is an empty one created."""
    path = store.path_of(name)

    def changed(raw: bytes | None) -> bytes | None:
        current = None if raw is None else parse(raw, path)
        document = new if current is None else current
        if document is None:
            raise MissingError(f"{path}: not found")
        after = change(document)
        if after == current or not (after or current):
            return None
        return format_document(after).encode()

    update_document(store, name, changed)


def create_document(store: Store, name: str, data: bytes) -> None:
    """Create a document unless it exists."""
    if store.can.compares:
        if not store.is_file(name):
            check_fence(look_began())
            with contextlib.suppress(Conflict):
                store.put(name, _unique(data), Expected.ABSENT)
    elif store.is_taken(name):
        remove_dead_lock(store.path_of(name))
    else:
        update_document(store, name, lambda raw: data if raw is None else None)


def remove_document(store: Store, name: str, may: Callable[[], bool], what: str) -> None:
    """Remove a document on a file system if a condition still holds once it is locked."""
    if not store.is_taken(name):
        # of a process that was killed after it removed the file
        remove_dead_lock(store.path_of(name))
        return
    path = store.path_of(name)
    with locked_file(_replaced_file(store, name), what):
        if may():
            files.remove_file(path)


def check_replaceable(store: Store, name: str, owner: str) -> None:
    """Raise PermissionError if a document, or the target of its link, cannot be replaced; ``owner``
    is what it describes."""
    if store.can.compares:
        return
    changed = dirname(_replaced_file(store, name))
    if files.isdir(changed) and not files.is_writable(changed):
        raise PermissionError(errno.EACCES, f"the {owner}'s {name} could not be updated", changed)


def is_locked(store: Store, name: str) -> bool:
    """Check whether a document is being changed, or its change was killed."""
    return (
        not store.can.compares
        and store.is_file(name)
        and files.lexists(lock_path(_replaced_file(store, name)))
    )


def _replaced_file(store: Store, name: str) -> str:
    """Return the file that a change of a document replaces, and by which it is locked."""
    path = store.path_of(name)
    real, folder = store.real(name), store.real()
    return real if is_below(real, folder) else join(folder, split(path)[1])
