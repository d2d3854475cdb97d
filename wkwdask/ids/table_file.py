"""Tables in files: CSV, or Parquet with the packages of the extra ``analysis``."""

from __future__ import annotations

import io
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from wkwdask.model.extras import import_extra
from wkwdask.store.paths import split, target_path
from wkwdask.store.store import check_new_file, store_at

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from pandas import DataFrame

    from wkwdask.model.store import NewFile

SUFFIXES = (".csv", ".parquet")


class _Stream(io.RawIOBase):
    """Sequential stream into a new file."""

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._nbytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        nbytes = memoryview(data).nbytes
        self._file.write(data, self._nbytes)
        self._nbytes += nbytes
        return nbytes


def table_path(url: str | os.PathLike[str]) -> str:
    """Check, before the work begins, that a table can be written to a path."""
    path = target_path(url)
    if not path.endswith(SUFFIXES):
        raise ValueError(f"{path}: a table is written as {' or '.join(SUFFIXES)}")
    check_new_file(path)
    if path.endswith(".parquet"):
        import_extra("pyarrow", path, "analysis")
    return path


def write_table(frame: DataFrame, path: str) -> None:
    """Write a table atomically."""
    write_parts([frame], path)


def write_parts(frames: Iterable[DataFrame], path: str) -> None:
    """Write a table atomically, given as at least one part."""
    folder, name = split(path)
    store = store_at(folder)
    write = _write_parquet if path.endswith(".parquet") else _write_csv
    if store.can.compares:
        memory = io.BytesIO()
        write(frames, memory)
        store.put(name, memory.getvalue())
        return
    with store.new_file(name) as file, io.BufferedWriter(_Stream(file), 1 << 20) as stream:
        write(frames, stream)


def _write_parquet(frames: Iterable[DataFrame], stream: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = (pa.Table.from_pandas(frame) for frame in frames)
    first = next(tables)
    with pq.ParquetWriter(stream, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _write_csv(frames: Iterable[DataFrame], stream: IO[bytes]) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    for number, frame in enumerate(frames):
        frame.to_csv(text, header=number == 0)
    text.detach()
