"""Write a zip of a folder: files are stored without compression, in a given order, and the zip is
published whole.

All members have Zip64 sizes, also small ones, as RFC-9 of OME-NGFF recommends. Python's ``zipfile``
writes them in local headers, but not in the central directory. Source: APPNOTE.TXT 6.3.10, cited by
section.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from wkwdask.store import files
from wkwdask.store.new_files import RenamedFile
from wkwdask.store.zip_directory import LOCAL_SIGNATURE

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOCAL = Struct("<4s5H3L2H2H2Q")  # 4.3.7: local file header, with the Zip64 field (4.5.3)
_MEMBER = Struct("<4s6H3L5H2L")  # 4.3.12: central directory header
_ZIP64_FIELD = Struct("<2H3Q")  # 4.5.3
_END_64 = Struct("<4sQ2H2L4Q")  # 4.3.14
_LOCATOR_64 = Struct("<4sLQL")  # 4.3.15
_END = Struct("<4s4H2LH")  # 4.3.16
_VERSION_MADE, _VERSION = 3 << 8 | 45, 45  # 4.4.2, 4.4.3: Unix; Zip64
_UTF8 = 1 << 11  # 4.4.4
# 4.4.6: the first date that a zip can state, so that equal folders become equal zips
_MIDNIGHT, _FIRST_DAY = 0, 1 << 5 | 1
_MODE = 0o100644 << 16  # 4.4.15: external attributes
_ZIP64 = 0xFFFFFFFF
_PIECE_NBYTES = 8 << 20


class _Written(NamedTuple):
    name: bytes
    offset: int
    nbytes: int
    crc: int


def write_zip(path: str, folder: str, names: Iterable[str], comment: bytes) -> int:
    """Write files of a folder into a new zip, and return its size. The zip replaces an existing
    file atomically."""
    with RenamedFile(path) as zipped:
        written, end = [], 0
        for name in names:
            member = _write_member(zipped, f"{folder}/{name}", name.encode(), end)
            written.append(member)
            end = member.offset + _LOCAL.size + len(member.name) + member.nbytes
        directory = b"".join(map(_directory_entry, written))
        tail = directory + _end_records(len(written), len(directory), end, comment)
        zipped.write(tail, end)
    return end + len(tail)


def _write_member(zipped: RenamedFile, path: str, name: bytes, offset: int) -> _Written:
    crc, nbytes = 0, 0
    start = offset + _LOCAL.size + len(name)
    with files.open_file(path) as source:
        while piece := source.read_some(_PIECE_NBYTES, nbytes):
            crc = zlib.crc32(piece, crc)
            zipped.write(piece, start + nbytes)
            nbytes += len(piece)
    head = _LOCAL.pack(
        LOCAL_SIGNATURE,
        _VERSION,
        _UTF8,
        0,
        _MIDNIGHT,
        _FIRST_DAY,
        crc,
        _ZIP64,
        _ZIP64,
        len(name),
        20,
        1,
        16,
        nbytes,
        nbytes,
    )
    # The name stands between the fixed part of the header and its extra field of 20 bytes.
    zipped.write(head[:-20] + name + head[-20:], offset)
    return _Written(name, offset, nbytes, crc)


def _directory_entry(member: _Written) -> bytes:
    head = _MEMBER.pack(
        b"PK\1\2",
        _VERSION_MADE,
        _VERSION,
        _UTF8,
        0,
        _MIDNIGHT,
        _FIRST_DAY,
        member.crc,
        _ZIP64,
        _ZIP64,
        len(member.name),
        _ZIP64_FIELD.size,
        0,
        0,
        0,
        _MODE,
        _ZIP64,
    )
    return (
        head + member.name + _ZIP64_FIELD.pack(1, 24, member.nbytes, member.nbytes, member.offset)
    )


def _end_records(count: int, nbytes: int, start: int, comment: bytes) -> bytes:
    record = _END_64.pack(
        b"PK\6\6", _END_64.size - 12, _VERSION_MADE, _VERSION, 0, 0, count, count, nbytes, start
    )
    locator = _LOCATOR_64.pack(b"PK\6\7", 0, start + nbytes, 1)
    end = _END.pack(
        b"PK\5\6",
        0,
        0,
        min(count, 0xFFFF),
        min(count, 0xFFFF),
        min(nbytes, _ZIP64),
        min(start, _ZIP64),
        len(comment),
    )
    return record + locator + end + comment
