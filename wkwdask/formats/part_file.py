"""Part files: encoded chunks behind each other, then their codes and lengths. What tasks leave for the one that joins them into a shard."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wkwdask.model.run import FOOTER_NBYTES, RunTable, format_run_tail, parse_run_tail, run_tail_nbytes
from wkwdask.store import files

if TYPE_CHECKING:
    from wkwdask.model.pieces import Pieces


class Run(Protocol):
    """Encoded chunks that can be copied."""

    table: RunTable

    def copy(self, offset: int, nbytes: int, output: Pieces) -> None:
        """Append bytes of the payload to a new file."""


class PartFile:
    """An open part file."""

    def __init__(self, path: str) -> None:
        self._file = file = files.open_file(path)
        tail = run_tail_nbytes(file.read_some(FOOTER_NBYTES, max(0, file.nbytes - FOOTER_NBYTES)), file.nbytes, path)
        self.table: RunTable = parse_run_tail(file.read_some(tail, file.nbytes - tail), path)

    def copy(self, offset: int, nbytes: int, output: Pieces) -> None:
        """Append bytes of the payload to a new file."""
        output.copy(self._file, offset, nbytes)


def close_part(output: Pieces, table: RunTable, checksum: int) -> tuple[int, int]:
    """Write the tail of a part file and publish it."""
    tail = format_run_tail(table)
    output.append(np.frombuffer(tail, np.uint8))
    output.close().publish()
    return output.end, zlib.crc32(tail, checksum)


def is_whole_part(path: str, nbytes: int, checksum: int) -> bool:
    """Tell whether a part file is there and has all its bytes."""
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return False
    return len(data) == nbytes and zlib.crc32(data) == checksum
