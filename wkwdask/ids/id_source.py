"""Mappings of ids as users have them: dicts, arrays and tables in memory; CSV, Parquet, ``.npy``
and WEBKNOSSOS agglomerate files (HDF5).

Files are read in chunks of bounded size.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wkwdask.errors import FormatError, MissingError, UnsupportedError
from wkwdask.formats.pictures.array_file import find_item, npy_ref, open_hdf5
from wkwdask.formats.pictures.slices import check_plausible, file_stamp
from wkwdask.ids.id_map import ROWS, IdMap, use_npy, write_pairs_sorted, write_values
from wkwdask.ids.table_file import SUFFIXES as TABLE_SUFFIXES
from wkwdask.ids.table_file import table_path, write_table
from wkwdask.model.extras import import_extra
from wkwdask.model.parsing import reading
from wkwdask.store import by_path
from wkwdask.store.paths import abspath, local_path, split, splitext
from wkwdask.store.store import check_new_file, store_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.array_types import AnyArray, UintArray

    Chunk = tuple[int, UintArray, UintArray]

AGGLOMERATE_SUFFIXES = (".hdf5", ".h5")
AGGLOMERATE_DATASET = "segment_to_agglomerate"
SUFFIXES = (".csv", ".parquet", ".npy", ".nml", *AGGLOMERATE_SUFFIXES)
_MOST = 2**64 - 1
_MOST_DIGITS = len(str(_MOST))
_PAIR_NBYTES = 16
_ENCODING = "utf-8-sig"  # some programs write a byte order mark


class IdSource(Protocol):
    """Mapping of ids."""

    @property
    def name(self) -> str:
        """Name of the mapping in errors."""

    def digest(self) -> str:
        """Return the digest of the content."""

    def write(self, folder: str) -> IdMap:
        """Write the mapping as a table into an existing folder."""


def as_ids(values: Any, what: str) -> UintArray:
    """Check that values are ids, integers from 0 to 2^64 - 1, and return them as uint64."""
    array = np.asarray(values)
    if (
        array.dtype.kind == "f"
        and not hasattr(values, "dtype")
        and all(isinstance(value, (int, np.integer)) for value in values)
    ):
        array = np.array(values, object)  # ids above 2^63 - 1 and negative ones made it float64
    if array.dtype.kind == "O" and all(
        isinstance(value, (int, np.integer)) for value in array.ravel()
    ):
        for value in array.ravel():
            if not 0 <= value <= _MOST:
                raise ValueError(f"{what}: {value} is not an id, expected 0 to 2^64 - 1")
        return array.astype(np.uint64)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{what}: holds {array.dtype.name}, expected whole numbers")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise ValueError(f"{what}: {array.min()} is not an id, expected 0 to 2^64 - 1")
    ids: UintArray = array.astype(np.uint64, copy=False)
    return ids


@dataclass(frozen=True)
class PairsInMemory:
    """Pairs of ids in memory."""

    keys: UintArray
    values: UintArray
    name: str = "mapping"

    def digest(self) -> str:
        return hashlib.blake2b(
            self.keys.tobytes() + self.values.tobytes(), digest_size=16
        ).hexdigest()

    def write(self, folder: str) -> IdMap:
        return write_pairs_sorted(
            folder, lambda: [(1, self.keys, self.values)], lambda row: f"{self.name}: row {row}"
        )


@dataclass(frozen=True)
class ValuesInMemory:
    """Values of the ids 0, 1, 2... in memory."""

    values: AnyArray
    name: str = "mapping"

    def digest(self) -> str:
        return hashlib.blake2b(b"dense" + self.values.tobytes(), digest_size=16).hexdigest()

    def write(self, folder: str) -> IdMap:
        return write_values(folder, [self.values], self.name)


@dataclass(frozen=True)
class _File:
    """Base of mappings in files."""

    path: str

    @property
    def name(self) -> str:
        return self.path

    def digest(self) -> str:
        with store_at(self.path).open_stream() as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]  # all our streams have readinto

    def chunks(self) -> Iterator[Chunk]:
        """Yield the pairs in chunks: number of the first row, ids, values."""
        raise NotImplementedError

    def describe(self, row: int) -> str:
        """Return the place of a row, for errors."""
        return f"{self.path}: row {row}"

    def _check_plausible(self, nbytes: int, path: str | None = None) -> None:
        """Raise CorruptError if the file, or another one that holds the ids, is too small for so
        many bytes of ids."""
        check_plausible(nbytes, file_stamp(abspath(path or self.path))[0], self.path)

    def write(self, folder: str) -> IdMap:
        return write_pairs_sorted(folder, self.chunks, self.describe)


class CsvFile(_File):
    """CSV file of two columns, with or without a header; rows are counted as lines."""

    def chunks(self) -> Iterator[Chunk]:
        import pandas as pd

        has_header = self._has_header()
        first = 2 if has_header else 1
        with reading(self.path, "CSV file", lambda: f"behind line {first - 1}"):
            try:
                reader = pd.read_csv(
                    self.path,
                    header=None,
                    skiprows=int(has_header),
                    chunksize=ROWS,
                    skip_blank_lines=False,
                    encoding=_ENCODING,
                    encoding_errors="replace",
                    low_memory=False,  # otherwise parts of a chunk may get different types
                )
                with reader:
                    for frame in reader:
                        if frame.shape[1] != 2:
                            self._raise_bad_line(has_header)
                        # The dtype= of pandas would silently convert 1.5 and True to ids.
                        keys, values = (
                            as_ids(frame.iloc[:, n].to_numpy(), f"column {n + 1}") for n in range(2)
                        )
                        yield first, keys, values
                        first += len(frame)
            except pd.errors.EmptyDataError:
                return
            except (TypeError, ValueError, LookupError, ArithmeticError):
                self._raise_bad_line(has_header)
                raise

    def _has_header(self) -> bool:
        """Return whether the first line is a header. A line that begins with a number is data and
        is never skipped."""
        with io.TextIOWrapper(
            store_at(self.path).open_stream(), encoding=_ENCODING, errors="replace"
        ) as file:
            line = file.readline().strip()
        try:
            float(_unquoted(line.split(",")[0]))
        except ValueError:
            if line and "," not in line:
                raise FormatError(
                    f"{self.describe(1)}: found {line[:80]!r}, expected the names of two columns, "
                    "or two ids"
                ) from None
            return bool(line)
        return False

    def _raise_bad_line(self, has_header: bool) -> None:
        """Raise an error that names the first line that is no pair of ids."""
        with io.TextIOWrapper(
            store_at(self.path).open_stream(), encoding=_ENCODING, errors="replace"
        ) as file:
            for number, line in enumerate(file, 1):
                if number == 1 and has_header:
                    continue
                parts = [
                    _unquoted(part).removeprefix("+") for part in line.strip("\r\n").split(",")
                ]
                if len(parts) != 2 or not all(is_id(part) for part in parts):
                    raise FormatError(
                        f"{self.describe(number)}: found {line.strip()[:80]!r}, expected two ids "
                        "from 0 to 2^64 - 1, such as 12,7"
                    )

    def describe(self, row: int) -> str:
        return f"{self.path}: line {row}"


def is_id(part: str) -> bool:
    """Return whether a text is a number from 0 to 2^64 - 1."""
    digits = part.lstrip("0") or part[:1]
    return (
        digits.isascii()
        and digits.isdecimal()
        and len(digits) <= _MOST_DIGITS
        and int(digits) <= _MOST
    )


def _unquoted(part: str) -> str:
    part = part.strip()
    return part[1:-1] if len(part) > 1 and part[0] == part[-1] == '"' else part


class ParquetFile(_File):
    """Parquet file of two integer columns."""

    def chunks(self) -> Iterator[Chunk]:
        import_extra("pyarrow", self.path, "analysis")
        import pyarrow.parquet as pq

        first = 1
        with (
            reading(self.path, "Parquet file", lambda: f"behind row {first - 1}"),
            pq.ParquetFile(self.path) as file,
        ):
            names = self._by_index(file.schema_arrow)
            if len(names) != 2:
                raise FormatError(
                    f"{self.path}: has {len(names)} columns ({', '.join(names[:8])}), expected "
                    "two: old and new ids"
                )
            for batch in file.iter_batches(ROWS):
                # runs of equal ids take a few bytes
                self._check_plausible(_PAIR_NBYTES * (first + batch.num_rows - 1))
                columns = [self._column(batch, name, first) for name in names]
                yield first, columns[0], columns[1]
                first += batch.num_rows

    @staticmethod
    def _by_index(schema: Any) -> list[str]:
        """Return the columns, with the index of a pandas table, which is stored last, first."""
        index = [
            name
            for name in (schema.pandas_metadata or {}).get("index_columns", ())
            if isinstance(name, str)
        ]
        return [*index, *(name for name in schema.names if name not in index)]

    def _column(self, batch: Any, name: str, first: int) -> UintArray:
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count:
            row = first + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise FormatError(f"{self.describe(row)}: column {name} is empty, expected an id")
        return as_ids(
            column.to_numpy(zero_copy_only=False),
            f"{self.path}: column {name}, rows {first} to {first + batch.num_rows - 1}",
        )


class NpyFile(_File):
    """``.npy`` of pairs, shape (n, 2), or of one value for each id from 0, which is used in
    place."""

    def _opened(self) -> tuple[AnyArray, int]:
        """Map the array into memory; return it with the offset of its first byte."""
        ref, is_reversed = npy_ref(self.path)
        dtype, shape = np.dtype(ref.dtype), ref.shape[::-1] if is_reversed else ref.shape
        if dtype.kind not in "iu" or not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 2)):
            raise FormatError(
                f"{self.path}: holds {dtype.name} of shape {shape}, expected integers of shape "
                "(n,), one for each id, or (n, 2)"
            )
        if 0 in shape:
            return np.zeros(shape, dtype), ref.offset
        return by_path.map_array(
            self.path, dtype, ref.offset, shape, "F" if is_reversed else "C"
        ), ref.offset

    def chunks(self) -> Iterator[Chunk]:
        array, _ = self._opened()
        for first in range(0, len(array), ROWS):
            rows = np.array(array[first : first + ROWS])
            with reading(self.path, "mapping"):
                keys, values = (
                    as_ids(rows[:, n], f"rows {first + 1} to {first + len(rows)}") for n in range(2)
                )
            yield first + 1, keys, values

    def write(self, folder: str) -> IdMap:
        """Write the table, or use the file in place."""
        array, offset = self._opened()
        if array.ndim == 2:
            return super().write(folder)
        if not array.dtype.isnative:
            return write_values(
                folder,
                (np.array(array[first : first + ROWS]) for first in range(0, len(array), ROWS)),
                self.path,
            )
        return use_npy(self.path, array.dtype, offset, len(array))


class AgglomerateFile(_File):
    """WEBKNOSSOS agglomerate file: ``segment_to_agglomerate`` has a value for each segment from
    0."""

    def write(self, folder: str) -> IdMap:
        with open_hdf5(self.path, "analysis") as file, reading(self.path, "agglomerate file"):
            h5py, found = (
                import_extra("h5py", self.path, "analysis"),
                find_item(file, AGGLOMERATE_DATASET),
            )
            if (
                not isinstance(found, h5py.Dataset)
                or found.ndim != 1
                or found.dtype.kind not in "iu"
            ):
                raise FormatError(
                    f"{self.path}: expected a list of integers {AGGLOMERATE_DATASET}, as in "
                    f"agglomerate files; the file contains {', '.join(file) or 'nothing'}"
                )
            if not (found.is_virtual or found.external):
                self._check_plausible(found.nbytes, found.file.filename)
            return write_values(
                folder,
                (found[first : first + ROWS] for first in range(0, len(found), ROWS)),
                self.path,
            )


def open_mapping(mapping: Any) -> IdSource:
    """Return the mapping of a user's object or file. NML is not handled here: it needs the
    segmentation."""
    if isinstance(mapping, (str, os.PathLike)):
        return _open_file(local_path(mapping))
    if isinstance(mapping, dict):
        return _pairs(list(mapping), list(mapping.values()))
    if isinstance(mapping, tuple) and len(mapping) == 2:
        return _pairs(*mapping)
    if isinstance(mapping, np.ndarray) and mapping.ndim == 1:
        return ValuesInMemory(as_ids(mapping, "mapping"))
    if isinstance(mapping, np.ndarray) and mapping.ndim == 2 and mapping.shape[1] == 2:
        return _pairs(mapping[:, 0], mapping[:, 1])
    if type(mapping).__module__.startswith("pandas"):
        if mapping.ndim == 1:
            return _pairs(mapping.index.to_numpy(), mapping.to_numpy())
        if mapping.shape[1] == 2:
            return _pairs(mapping.iloc[:, 0].to_numpy(), mapping.iloc[:, 1].to_numpy())
    shape = f" of shape {mapping.shape}" if hasattr(mapping, "shape") else ""
    raise TypeError(
        "a mapping is a dict, an array of shape (n, 2) or (n,), a tuple of two arrays, a Series, a "
        "DataFrame of two columns, or a file, "
        f"got {type(mapping).__name__}{shape}"
    )


def _pairs(keys: Any, values: Any) -> PairsInMemory:
    pairs = PairsInMemory(
        as_ids(keys, "ids of the mapping"), as_ids(values, "values of the mapping")
    )
    if pairs.keys.ndim != 1 or pairs.keys.shape != pairs.values.shape:
        raise ValueError(
            f"mapping: ids of shape {pairs.keys.shape} and values of shape {pairs.values.shape}, "
            "expected two lists of one length"
        )
    return pairs


def _open_file(path: str) -> IdSource:
    kinds = {
        ".csv": CsvFile,
        ".parquet": ParquetFile,
        ".npy": NpyFile,
        **dict.fromkeys(AGGLOMERATE_SUFFIXES, AgglomerateFile),
    }
    kind = kinds.get(splitext(path)[1].lower())
    if kind is None:
        raise UnsupportedError(f"{path}: a mapping is read from {', '.join(SUFFIXES)}")
    if not store_at(path).is_file():
        raise MissingError(f"{path}: no such file")
    return kind(path)


# ------------------------------------------------------------------------------------------------
# writing


def mapping_path(url: str | os.PathLike[str]) -> str:
    """Check, before the work begins, that a mapping can be written to a path."""
    path = local_path(url)
    if not path.endswith((".npy", *TABLE_SUFFIXES)):
        raise ValueError(f"{path}: a mapping is written as .npy, {' or '.join(TABLE_SUFFIXES)}")
    if not path.endswith(".npy"):
        return table_path(path)
    check_new_file(path)
    return path


def write_mapping(path: str, old: AnyArray, new: AnyArray) -> None:
    """Write a mapping atomically, in a form that :func:`open_mapping` reads."""
    import pandas as pd

    if not path.endswith(".npy"):
        frame = pd.DataFrame({"old": old.astype(np.uint64), "new": new.astype(np.uint64)})
        # The old ids must be the first column. pandas writes an index as the first column of a CSV
        # file, but as the last of a Parquet file.
        write_table(frame.set_index("old") if path.endswith(".csv") else frame, path)
        return
    stream = io.BytesIO()
    np.save(stream, np.stack([old.astype(np.uint64), new.astype(np.uint64)], axis=1))
    folder, name = split(path)
    store_at(folder).put(name, stream.getvalue())
