"""What a mag keeps about its files: their states when they were written, and those of the files that they were made from."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt

from wkwdask.errors import CorruptError
from wkwdask.store import files
from wkwdask.store.new_files import publish_bytes

RECORD_NAME = ".wkwdask-files.npy"
RECORD_COLUMNS = 6
"""Index of a file along x, y, z, its size [bytes], its time of modification [ns], digest of the files of the finer mag that it was made from."""


def write_record(folder: str, rows: npt.NDArray[np.int64]) -> None:
    """Keep the record of a mag."""
    memory = io.BytesIO()
    np.save(memory, rows, allow_pickle=False)
    publish_bytes(f"{folder}/{RECORD_NAME}", memory.getvalue())


def read_record(folder: str) -> npt.NDArray[np.int64] | None:
    """Read the record of a mag, None where there is none."""
    path = f"{folder}/{RECORD_NAME}"
    try:
        rows = np.load(io.BytesIO(files.read_bytes(path)), allow_pickle=False)
    except FileNotFoundError:
        return None
    except OSError:
        raise
    except Exception as error:  # numpy's reader raises whatever its parsing of a damaged header raises
        raise CorruptError(f"{path}: no record of files ({error}); remove it, or build the mag anew") from None
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != RECORD_COLUMNS:
        raise CorruptError(f"{path}: {rows.dtype} of shape {rows.shape}, expected int64 of shape (n, {RECORD_COLUMNS})")
    return rows  # type: ignore[no-any-return]


def merge_record(folder: str, rows: npt.NDArray[np.int64]) -> None:
    """Bring the record of a mag up to date about some of its files; a mag without one gets none, since it would say that all other files are empty."""
    before = read_record(folder)
    if before is None:
        return
    known = {tuple(row[:3]): row for row in before.tolist()}
    known.update({tuple(row[:3]): row for row in rows.tolist()})
    write_record(folder, np.array(list(known.values()), np.int64).reshape(-1, RECORD_COLUMNS))
