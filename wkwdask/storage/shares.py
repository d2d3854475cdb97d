"""The tasks of one round of a job array, in one file: groups of pickled tasks, and an index that says where each group lies.

An element reads its own groups alone. Tasks of a group are pickled together, so that what they have in common is stored once.
"""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError
from wkwdask.storage.local import NewFile, publish_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_INDEX_SUFFIX = ".index"


def write_shares(path: str, tasks: Iterable[Any], group: int, dumps: Callable[[Any], bytes]) -> int:
    """Write tasks down; the file appears whole, and its index after it.

    Parameters
    ----------
    path : str
        The file.
    tasks : iterable
        The tasks.
    group : int
        How many are handed out together.
    dumps : callable
        Makes bytes of a list of tasks, for ``pickle.loads``.

    Returns
    -------
    int
        How many tasks there are.
    """
    offset, index = 0, []
    waiting = iter(tasks)
    file = NewFile(path)
    try:
        while members := list(islice(waiting, group)):
            data = dumps(members)
            file.write(data, offset)
            index.append((offset, len(data), len(members)))
            offset += len(data)
    except BaseException:
        file.discard()
        raise
    file.publish()
    publish_bytes(path + _INDEX_SUFFIX, json.dumps(index).encode())
    return sum(count for _, _, count in index)


class Share:
    """What one element of an array is to do.

    Parameters
    ----------
    path : str
        The file of the round.
    element, elements : int
        Which element, of how many.
    """

    def __init__(self, path: str, element: int, elements: int) -> None:
        self._path = path
        with open(path + _INDEX_SUFFIX, "rb") as file:
            self._groups = json.load(file)[element::elements]

    def __len__(self) -> int:
        return sum(count for _, _, count in self._groups)

    def tasks(self) -> Iterator[Any]:
        """Go through the tasks, a group at a time.

        Raises
        ------
        CorruptError
            The file is shorter than its index says, or holds something else.
        """
        for offset, nbytes, count in self._groups:
            with open(self._path, "rb") as file:
                file.seek(offset)
                data = file.read(nbytes)
            if len(data) != nbytes:
                raise CorruptError(f"{self._path}: {len(data)} bytes at offset {offset}, expected {nbytes}")
            members = pickle.loads(data)
            if len(members) != count:
                raise CorruptError(f"{self._path}: {len(members)} tasks at offset {offset}, expected {count}")
            yield from members
