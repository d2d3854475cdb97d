"""Tables in files: CSV, or Parquet with the packages of the extra ``analysis``."""

from __future__ import annotations

import io
from typing import IO, TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, MissingError
from wkwdask.model.extras import import_extra
from wkwdask.store.paths import dirname, is_bucket, split, target_path
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    import os

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
    if is_bucket(path):
        store_at(dirname(path)).now()  # raises an error if this user may not write there
    elif not store_at(dirname(path) or ".").is_folder():
        raise MissingError(f"{path}: no such folder")
    if store_at(path).is_folder():
        raise ExistsError(f"{path}: is a folder; name a file")
    if path.endswith(".parquet"):
        import_extra("pyarrow", path, "analysis")
    return path


def write_table(frame: DataFrame, path: str) -> None:
    """Write a table atomically."""
    folder, name = split(path)
    store = store_at(folder)
    if store.can.compares:
        memory = io.BytesIO()
        _write(frame, memory, path)
        store.put(name, memory.getvalue())
        return
    with store.new_file(name) as file, io.BufferedWriter(_Stream(file), 1 << 20) as stream:
        _write(frame, stream, path)


def _write(frame: DataFrame, stream: IO[bytes], path: str) -> None:
    if path.endswith(".parquet"):
        frame.to_parquet(stream, engine="pyarrow")
        return
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    frame.to_csv(text)
    text.detach()
