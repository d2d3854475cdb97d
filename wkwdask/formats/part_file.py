"""Part files: encoded chunks behind each other, then their codes and lengths. What tasks leave for the one that joins them into a shard."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wkwdask.model.run import FOOTER_NBYTES, RunTable, format_run_tail, parse_run_tail, run_tail_nbytes

if TYPE_CHECKING:
    from wkwdask.store.pieces import Pieces


class Run(Protocol):
    """Encoded chunks that can be copied."""

    table: RunTable

    def copy(self, offset: int, nbytes: int, output: Pieces) -> None:
        """Append bytes of the payload to a new file."""


class PartFile:
    """An open part file."""

    def __init__(self, path: str) -> None:
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.path = path
        nbytes = os.fstat(self._fd).st_size
        footer = os.pread(self._fd, FOOTER_NBYTES, max(0, nbytes - FOOTER_NBYTES))
        tail = run_tail_nbytes(footer, nbytes, path)
        self.table: RunTable = parse_run_tail(os.pread(self._fd, tail, nbytes - tail), path)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def copy(self, offset: int, nbytes: int, output: Pieces) -> None:
        """Append bytes of the payload to a new file."""
        output.copy(self._fd, offset, nbytes, self.path)


def close_part(output: Pieces, table: RunTable, checksum: int) -> tuple[int, int]:
    """Write the tail of a part file and publish it."""
    tail = format_run_tail(table)
    output.append(np.frombuffer(tail, np.uint8))
    output.close().publish()
    return output.end, zlib.crc32(tail, checksum)


def is_whole_part(path: str, nbytes: int, checksum: int) -> bool:
    """Tell whether a part file is there and has all its bytes."""
    try:
        with open(path, "rb") as part:
            data = part.read()
    except FileNotFoundError:
        return False
    return len(data) == nbytes and zlib.crc32(data) == checksum
