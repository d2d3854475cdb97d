"""MRC files, as volumes of one array: the header by mrcfile, voxels by reads at offsets. A gzipped
file is unpacked to a scratch file first."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.file_suffixes import MRC_SUFFIXES
from wkwdask.formats.pictures.array_file import DescribedArray, bytes_ref, decimal, gzip_ref
from wkwdask.model.extras import import_extra
from wkwdask.model.levels import length_nm
from wkwdask.model.parsing import reading
from wkwdask.store.paths import splitext

_IMOD_BYTES = slice(152, 160)  # imodStamp and imodFlags in the header (IMOD's MRC file format)
_IMOD_STAMP = 1146047817
_DTYPES = {0: "i1", 1: "i2", 2: "f4", 6: "u2", 12: "f2"}  # MRC2014, MODE (word 4)
# MRC2014, ISPG (word 23): 400 more than the space group of each volume
_VOLUME_STACKS = range(401, 631)


def is_mrc(path: str) -> bool:
    stem, suffix = splitext(path.lower())
    return (splitext(stem)[1] if suffix == ".gz" else suffix) in MRC_SUFFIXES


def open_mrc(path: str) -> DescribedArray:
    header, size, notes = _header(path)
    order = header.nx.dtype.byteorder
    shape = (int(header.nz), int(header.ny), int(header.nx))
    mode, offset = int(header.mode), 1024 + int(header.nsymbt)
    maps = tuple(int(header[name]) for name in ("mapc", "mapr", "maps"))
    stamp, flags = np.frombuffer(
        header.tobytes()[_IMOD_BYTES], np.dtype("i4").newbyteorder(order)
    ).tolist()
    if mode not in _DTYPES:
        raise UnsupportedError(
            f"{path}: mode {mode}, expected one of {', '.join(map(str, _DTYPES))}"
        )
    if min(shape) <= 0 or offset < 1024:
        raise CorruptError(f"{path}: holds {shape} sections, rows and columns from byte {offset}")
    group, depth = int(header.ispg), int(header.mz)
    if group in _VOLUME_STACKS and 0 < depth < shape[0]:
        notes.append(
            f"{path}: a stack of {shape[0] // depth} volumes of {depth} sections each, read as "
            f"{shape[0]} consecutive sections"
        )
    # Some software leaves the words mapc, mapr and maps (17 to 19) at zero.
    stored = [
        {1: "x", 2: "y", 3: "z"}.get(n, str(n)) if any(maps) else None for n in reversed(maps)
    ]
    # MRC2014: mode 0 is int8. IMOD writes uint8 in that mode, unless bit 0 of its flags says that
    # bytes are signed.
    dtype = "u1" if mode == 0 and stamp == _IMOD_STAMP and not flags & 1 else _DTYPES[mode]
    make_ref = gzip_ref if path.lower().endswith(".gz") else bytes_ref
    return DescribedArray(
        make_ref(path, shape, np.dtype(dtype).newbyteorder(order), offset),
        stored,
        size,
        tuple(notes),
    )


def _header(path: str) -> tuple[Any, list[float], list[str]]:
    """Read the header. Files from before MRC2014 have no MAP string and no machine stamp: what
    mrcfile reports of these becomes a note."""
    mrcfile = import_extra("mrcfile", path)
    with reading(path, "MRC file"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mrcfile.open(path, mode="r", header_only=True, permissive=True) as mrc:
            size = [length_nm(decimal(mrc.voxel_size[axis]), "angstrom") for axis in "xyz"]
            return mrc.header, size, [f"{path}: {warning.message}" for warning in caught]
