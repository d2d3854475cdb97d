"""The tasks of one round of a job array, in one file: groups of pickled tasks, and an index that says where each group lies.

An element reads its own groups alone. Tasks of a group are pickled together, so that what they have in common is stored once. Reading a pickle runs
what it says: a group is only read where it is signed by the user that reads it, for just this place in this round of this job.
"""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError
from wkwdask.model.parsing import reading
from wkwdask.store import files
from wkwdask.store.json_record import read_record
from wkwdask.store.new_files import NewFile, publish_bytes
from wkwdask.store.user_key import is_signed, key_path, signature, user_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_INDEX_SUFFIX = ".index"


def write_shares(path: str, tasks: Iterable[Any], group: int, dumps: Callable[[Any], bytes]) -> int:
    """Write tasks down; the file appears whole, and its index after it."""
    offset, index = 0, []
    waiting, key = iter(tasks), user_key(make=True)
    file = NewFile(path)
    try:
        while members := list(islice(waiting, group)):
            data = dumps(members)
            file.write(data, offset)
            index.append((offset, len(data), len(members), signature(key, f"{path} {offset} {len(members)}", data)))
            offset += len(data)
    except BaseException:
        file.discard()
        raise
    file.publish()
    publish_bytes(path + _INDEX_SUFFIX, json.dumps({"groups": index}).encode())
    return sum(count for _, _, count, _ in index)


class Share:
    """What one element of an array is to do."""

    def __init__(self, path: str, element: int, elements: int) -> None:
        self._path = path
        self._key = user_key()
        index_path = path + _INDEX_SUFFIX
        index = read_record(index_path)
        if index is None:
            raise MissingError(f"{index_path}: not found")
        with reading(index_path, "record"):
            self._groups = [
                (_count(offset), _count(nbytes), _count(count), str(signed)) for offset, nbytes, count, signed in index["groups"][element::elements]
            ]

    def __len__(self) -> int:
        return sum(count for _, _, count, _ in self._groups)

    def tasks(self) -> Iterator[Any]:
        """Go through the tasks, a group at a time."""
        for offset, nbytes, count, signed in self._groups:
            with files.open_stream(self._path) as file:
                file.seek(offset)
                data = file.read(nbytes)
            if len(data) != nbytes:
                raise CorruptError(f"{self._path}: {len(data)} bytes at offset {offset}, expected {nbytes}")
            if not is_signed(self._key, f"{self._path} {offset} {count}", data, signed):
                raise CorruptError(f"{self._path}: the {nbytes} bytes at offset {offset} are not signed with the key {key_path()}: they are not run")
            yield from pickle.loads(data)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a count, found {value!r}")
    return value
