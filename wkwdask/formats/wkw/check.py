"""What is wrong with the bytes of a WKW header or jump table: all of it, where the readers stop at the first fault.

Bytes in, faults out. Opens nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import FormatError, UnsupportedError
from wkwdask.formats.wkw.header import HEADER_NBYTES, INTEROPERABLE_LEN, BlockType, WkwHeader, parse_header
from wkwdask.formats.wkw.jump_table import ENTRY_NBYTES
from wkwdask.model.faults import Fault
from wkwdask.model.voxel_type import by_wkw_code

if TYPE_CHECKING:
    import numpy.typing as npt

GOOD, INSIDE, FALLS, BEYOND, EMPTY = range(5)
"""What is wrong with the place of a block."""

_TABLE_KINDS = {INSIDE: "table.inside", FALLS: "table.falls", BEYOND: "table.beyond", EMPTY: "table.empty_block"}


def check_mag_header(raw: bytes, path: str) -> tuple[WkwHeader | None, list[Fault]]:
    """Check ``header.wkw``."""
    header, faults = _check_header(raw, path, "header")
    if header is None:
        return None, faults
    if max(header.block_len, header.file_len) > INTEROPERABLE_LEN:
        lengths = f"block_len {header.block_len}, file_len {header.file_len}"
        faults.append(Fault("header.lengths", path, lengths, f"at most {INTEROPERABLE_LEN}", offset=4))
    if header.data_offset:
        faults.append(Fault("header.data_offset", path, f"data offset {header.data_offset}", "0", offset=8))
    if len(raw) > HEADER_NBYTES:
        faults.append(Fault("header.long", path, f"{len(raw)} bytes", f"{HEADER_NBYTES} bytes"))
    return header.with_block_type(header.block_type), faults


def check_file_header(raw: bytes, nbytes: int, mag_header: WkwHeader, path: str) -> tuple[WkwHeader | None, list[Fault]]:
    """Check the header of a data file."""
    if nbytes == 0:
        return None, [Fault("file.empty", path, "0 bytes", f"at least {mag_header.smallest_data_offset}")]
    header, faults = _check_header(raw, path, "file")
    if header is None:
        return None, faults
    for offset, kind, mine, theirs in (
        (4, "file.block_len", mag_header.block_len, header.block_len),
        (4, "file.file_len", mag_header.file_len, header.file_len),
        (6, "file.voxel_type", mag_header.dtype.name, header.dtype.name),
        (7, "file.channels", mag_header.num_channels, header.num_channels),
    ):
        if mine != theirs:
            faults.append(Fault(kind, path, str(theirs), f"{mine} as in header.wkw", offset=offset))
    if header.data_offset < header.smallest_data_offset:
        faults.append(Fault("file.data_offset", path, f"data offset {header.data_offset}", str(header.smallest_data_offset), offset=8))
    if faults:
        return None, faults
    if header.block_type is not mag_header.block_type:
        kind = "file.lz4_level" if header.is_compressed == mag_header.is_compressed else "file.block_type"
        faults.append(Fault(kind, path, header.block_type.label, f"{mag_header.block_type.label} as in header.wkw", offset=5))
    if header.data_offset > header.smallest_data_offset:
        faults.append(Fault("file.padding", path, f"data offset {header.data_offset}", str(header.smallest_data_offset), offset=8))
    return header, faults


def _check_header(raw: bytes, path: str, prefix: str) -> tuple[WkwHeader | None, list[Fault]]:
    """Check what all headers have in common; kinds are named ``header.`` or ``file.`` and so on."""
    if len(raw) < HEADER_NBYTES:
        return None, [Fault(f"{prefix}.short", path, f"{len(raw)} bytes", f"at least {HEADER_NBYTES}")]
    bad = "bad_" if prefix == "file" else ""
    faults = []
    if raw[:3] != b"WKW":
        faults.append(Fault(f"{prefix}.magic", path, repr(raw[:3]), repr(b"WKW"), offset=0))
    if raw[3] != 1:
        faults.append(Fault(f"{prefix}.version", path, f"version {raw[3]}", "1", offset=3))
    if raw[5] not in BlockType.__members__.values():
        faults.append(Fault(f"{prefix}.{bad}block_type", path, f"block type {raw[5]}", "1 (raw), 2 (lz4) or 3 (lz4hc)", offset=5))
    voxel_type = by_wkw_code(raw[6])
    if voxel_type is None:
        faults.append(Fault(f"{prefix}.{bad}voxel_type", path, f"voxel type {raw[6]}", "1 to 10", offset=6))
    elif raw[7] == 0 or raw[7] % voxel_type.dtype.itemsize:
        expected = f"a multiple of {voxel_type.dtype.itemsize} ({voxel_type.dtype.name})"
        faults.append(Fault(f"{prefix}.{bad}voxel_size", path, f"{raw[7]} bytes a voxel", expected, offset=7))
    if faults:
        return None, faults
    try:
        return parse_header(raw, path, is_data_file=False), []
    except (FormatError, UnsupportedError) as error:
        return None, [Fault(f"{prefix}.block_nbytes", path, str(error).removeprefix(f"{path}: "), offset=4)]


def check_bounds(bounds: npt.NDArray[np.uint64], header: WkwHeader, nbytes: int) -> npt.NDArray[np.uint8]:
    """Judge the places of consecutive blocks as a jump table gives them.

    Examples
    --------
    >>> from wkwdask.formats.wkw.header import make_header
    >>> header = make_header("uint8", block_len=8, file_len=1)
    >>> check_bounds(np.array([24, 30, 30, 28, 99, 5], np.uint64), header, 40).tolist()
    [0, 4, 2, 3, 1]
    """
    starts, ends = bounds[:-1], bounds[1:]
    first = header.smallest_data_offset
    conditions = ((starts < first) | (ends < first), ends < starts, ends > nbytes, ends == starts)
    return np.select(conditions, [INSIDE, FALLS, BEYOND, EMPTY], GOOD).astype(np.uint8)


def table_fault(code: int, judgement: int, bounds: npt.NDArray[np.uint64], at: int, nbytes: int, path: str) -> Fault:
    """Describe what is wrong with the place of a block."""
    start, end = int(bounds[at]), int(bounds[at + 1])
    expected = f"within the file's {nbytes} bytes" if judgement == BEYOND else "places that rise from the end of the table"
    return Fault(_TABLE_KINDS[judgement], path, f"bytes {start} to {end}", expected, block=code, offset=HEADER_NBYTES + ENTRY_NBYTES * code)
