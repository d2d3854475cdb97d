"""Many small files that are written one after the other and flushed together, which costs far less than one by one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from wkwdask.store.local import NewFile

_OPEN_AT_ONCE = 64  # far below what a process may have open, whatever the number of threads
_FLUSHED_AT_ONCE = 4  # a flush waits for the disk, and a journal is written once for those that wait together


class NewFiles:
    """Writes files that appear whole, some later than they were written, all of them before :meth:`publish` returns."""

    def __init__(self, temporary_folder: str) -> None:
        self._temporary_folder = temporary_folder
        self._waiting: list[NewFile] = []
        self.count = 0
        self.nbytes = 0

    def write(self, path: str, data: bytes) -> None:
        """Write a file; it appears under its name when the disk has it."""
        file = NewFile(path, self._temporary_folder)
        self._waiting.append(file)
        file.write(data, 0)
        file.start_writing_back(len(data))
        self.count += 1
        self.nbytes += len(data)
        if len(self._waiting) >= _OPEN_AT_ONCE:
            self.publish()

    def publish(self) -> None:
        """Flush what was written, and give it its names: first the one and then the other, since a journal that holds renames is flushed with each file."""
        if len(self._waiting) > 1:
            with ThreadPoolExecutor(_FLUSHED_AT_ONCE) as pool:
                for _ in pool.map(NewFile.sync, self._waiting):
                    pass
        while self._waiting:
            self._waiting[0].publish(flush_folder=False)
            del self._waiting[0]

    def discard(self) -> None:
        """Remove what has not appeared."""
        while self._waiting:
            self._waiting.pop().discard()
