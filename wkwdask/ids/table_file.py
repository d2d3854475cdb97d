"""Tables in files: CSV, or Parquet with the packages of the extra ``analysis``."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, MissingError
from wkwdask.model.extras import import_extra
from wkwdask.store.paths import dirname, local_path, split
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
    path = local_path(url)
    if not path.endswith(SUFFIXES):
        raise ValueError(f"{path}: a table is written as {' or '.join(SUFFIXES)}")
    if not store_at(dirname(path) or ".").is_folder():
        raise MissingError(f"{path}: no such folder")
    if store_at(path).is_folder():
        raise ExistsError(f"{path}: is a folder; name a file")
    if path.endswith(".parquet"):
        import_extra("pyarrow", path, "analysis")
    return path


def write_table(frame: DataFrame, path: str) -> None:
    """Write a table atomically."""
    folder, name = split(path)
    with (
        store_at(folder).new_file(name) as file,
        io.BufferedWriter(_Stream(file), 1 << 20) as stream,
    ):
        if path.endswith(".parquet"):
            frame.to_parquet(stream, engine="pyarrow")
        else:
            with io.TextIOWrapper(stream, encoding="utf-8", newline="") as text:
                frame.to_csv(text)
