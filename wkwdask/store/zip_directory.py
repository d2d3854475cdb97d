"""Central directory of a zip: names, sizes and places of its members, checked before any of them is
trusted.

Reads the end of an open file, local or remote, and no member. Source: .ZIP File Format
Specification (APPNOTE.TXT 6.3.10), cited by section.

Python's ``zipfile`` would not do: it reads a file at a position that threads share, so each member
of a zip on a server costs several requests. It allocates a large object for each of any number of
members before a limit could be checked, and it accepts members that overlap.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wkwdask.errors import CorruptError, TruncatedError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wkwdask.model.store import StoredFile

_END = struct.Struct("<4s4H2LH")  # 4.3.16: end of central directory record
_END_64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14: Zip64 end of central directory record
_LOCATOR_64 = struct.Struct("<4sLQL")  # 4.3.15: Zip64 end of central directory locator
_MEMBER = struct.Struct("<4s6H3L5H2L")  # 4.3.12: central directory header
LOCAL_HEADER = struct.Struct("<4s5H3L2H")  # 4.3.7: local file header
LOCAL_SIGNATURE = b"PK\3\4"
# a comment has at most 65535 bytes; the rest holds the whole directory of a small zip
_TAIL_NBYTES = 128 << 10
_MAX_DIRECTORY_NBYTES = 1 << 29
_MAX_MEMBERS = 1 << 22
_IN_ZIP64, _SIZE_IN_ZIP64 = 0xFFFF, 0xFFFFFFFF  # 4.4.1.4: the value is in the Zip64 record
_ENCRYPTED, _DESCRIBED_AFTER, _UTF8 = 1 << 0, 1 << 3, 1 << 11  # 4.4.4: general purpose bit flag
_ZIP64_LOCAL_NBYTES = 20  # 4.5.3: two sizes
STORED, DEFLATED = 0, 8  # 4.4.5: compression method


class Member(NamedTuple):
    """One file of a zip, according to the central directory."""

    offset: int
    """Offset of its local header [bytes from the start of the zip]."""
    name_nbytes: int
    packed_nbytes: int
    nbytes: int
    method: int
    crc: int
    flags: int

    @property
    def is_encrypted(self) -> bool:
        return bool(self.flags & _ENCRYPTED)


@dataclass(frozen=True, slots=True)
class ZipDirectory:
    """Central directory of a zip."""

    start: int
    """Offset at which it begins, and before which all members end [bytes]."""
    nbytes: int
    """Size of the zip."""
    members: dict[str, Member]
    folders: dict[str, dict[str, bool]] = field(default_factory=lambda: {"": {}})
    """For each folder the names in it, true for folders."""
    data_offsets: dict[str, int] = field(default_factory=dict)
    """Cache of the offsets at which the data of members begin."""

    def infer_data_offsets(self) -> None:
        """Fill the cache for members that leave no room for another extra field, so that their
        local headers need not be read."""
        for key, member, following in in_order(self.members, self.start):
            room = (
                following
                - member.packed_nbytes
                - member.offset
                - LOCAL_HEADER.size
                - member.name_nbytes
            )
            if room in (0, _ZIP64_LOCAL_NBYTES) and not member.flags & _DESCRIBED_AFTER:
                self.data_offsets[key] = following - member.packed_nbytes


def read_directory(file: StoredFile) -> ZipDirectory:
    """Read the central directory of a zip; raises FormatError for a damaged zip and for the tricks
    of zip bombs."""
    tail = file.read_end(_TAIL_NBYTES)
    if tail is None:
        raise FileNotFoundError(2, "No such file or directory", file.name)
    end = _find_end(tail, file.name)
    count, nbytes, start, record = _end_record(tail, end, file.name)
    known = file.nbytes
    total = start + nbytes + len(tail) - record
    if known is not None and total != known:
        raise CorruptError(
            f"{file.name}: the central directory of the zip ends at byte {start + nbytes}, "
            f"expected byte {known - len(tail) + record}"
        )
    if nbytes > _MAX_DIRECTORY_NBYTES or count > _MAX_MEMBERS:
        limit = f"at most {_MAX_MEMBERS} files and {_MAX_DIRECTORY_NBYTES} bytes"
        raise UnsupportedError(
            f"{file.name}: the zip lists {count} files in {nbytes} bytes, expected {limit}; store "
            "chunks in shards"
        )
    if nbytes <= record:
        raw = tail[record - nbytes : record]
    else:
        found = file.read([(start, start + nbytes)])
        if found is None:
            raise FileNotFoundError(2, "No such file or directory", file.name)
        raw = found[0]
    members = _parse_members(raw, count, start, file.name)
    _check_places(members, start, file.name)
    directory = ZipDirectory(start, total, members)
    _list_folders(directory, file.name)
    return directory


def _find_end(tail: bytes, name: str) -> int:
    """Return the position of the end record, whose comment must end where the file ends."""
    position = len(tail)
    while (position := tail.rfind(b"PK\5\6", 0, position)) >= 0:
        if position + _END.size <= len(tail) and position + _END.size + int.from_bytes(
            tail[position + 20 : position + 22], "little"
        ) == len(tail):
            return position
        position += 3  # rfind also finds a signature that overlaps this one
    raise CorruptError(
        f"{name}: not readable as zip: no end of central directory in the last {len(tail)} bytes"
    )


def _end_record(tail: bytes, end: int, name: str) -> tuple[int, int, int, int]:
    """Return the number of members, size and offset of the directory, and the position in the tail
    of the record after the directory."""
    _, disk, first_disk, here, count, nbytes, start, _ = _END.unpack_from(tail, end)
    record, locator = end, end - _LOCATOR_64.size
    if locator >= 0 and tail[locator : locator + 4] == b"PK\6\7":
        _, first_disk, offset, disks = _LOCATOR_64.unpack_from(tail, locator)
        record = locator - _END_64.size
        if record < 0 or tail[record : record + 4] != b"PK\6\6":
            raise CorruptError(
                f"{name}: expected a Zip64 record of {_END_64.size} bytes before its locator"
            )
        _, _, _, _, disk, _, here, count, nbytes, start = _END_64.unpack_from(tail, record)
        disk = max(disk, disks - 1)
        if start + nbytes != offset:
            raise CorruptError(
                f"{name}: the central directory of the zip ends at byte {start + nbytes}, its "
                f"Zip64 record begins at byte {offset}"
            )
    elif _IN_ZIP64 in (here, count) or _SIZE_IN_ZIP64 in (nbytes, start):
        raise CorruptError(f"{name}: the end of the zip refers to a Zip64 record, which is missing")
    if disk or first_disk or here != count:
        raise UnsupportedError(
            f"{name}: is one part of a zip in several files, expected a whole zip"
        )
    if count * _MEMBER.size > nbytes:
        raise CorruptError(f"{name}: the zip lists {count} files in a directory of {nbytes} bytes")
    return count, nbytes, start, record


def _parse_members(raw: bytes, count: int, start: int, name: str) -> dict[str, Member]:
    """Parse the directory. Of several members of one name the last counts: software that updates a
    file in a zip appends it."""
    members: dict[str, Member] = {}
    position = 0
    for number in range(count):
        if raw[position : position + 4] != b"PK\1\2" or position + _MEMBER.size > len(raw):
            raise CorruptError(
                f"{name}: byte {start + position}: expected entry {number} of {count} of the "
                "central directory"
            )
        (
            _,
            _,
            _,
            flags,
            method,
            _,
            _,
            crc,
            packed,
            nbytes,
            name_len,
            extra_len,
            comment_len,
            disk,
            _,
            _,
            offset,
        ) = _MEMBER.unpack_from(raw, position)
        extra_at = position + _MEMBER.size + name_len
        position_after = extra_at + extra_len + comment_len
        if position_after > len(raw):
            raise TruncatedError(
                f"{name}: byte {start + position}: entry {number} of the central directory is cut "
                "off"
            )
        try:
            member_name = raw[position + _MEMBER.size : extra_at].decode(
                "utf-8" if flags & _UTF8 else "cp437"
            )
        except UnicodeDecodeError as error:
            raise CorruptError(
                f"{name}: byte {start + position}: the name of entry {number} is not UTF-8: "
                f"{error.reason}"
            ) from None
        if _SIZE_IN_ZIP64 in (packed, nbytes, offset):
            nbytes, packed, offset = _zip64_values(
                raw[extra_at : extra_at + extra_len],
                nbytes,
                packed,
                offset,
                f"{name}: {member_name}",
            )
        while member_name.startswith("./"):  # as some archivers write them
            member_name = member_name[2:]
        if disk not in (0, _IN_ZIP64):
            raise UnsupportedError(
                f"{name}: {member_name}: is in another part of a zip in several files"
            )
        members.pop(member_name, None)
        members[member_name] = Member(offset, name_len, packed, nbytes, method, crc, flags)
        position = position_after
    if position != len(raw):
        raise CorruptError(
            f"{name}: byte {start + position}: {len(raw) - position} bytes after the last entry of "
            "the central directory"
        )
    return members


def _zip64_values(
    extra: bytes, nbytes: int, packed: int, offset: int, name: str
) -> tuple[int, int, int]:
    """Read the values that do not fit into 32 bits from the extra field of a member (4.5.3)."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            values = iter(
                struct.unpack_from(f"<{min(size, len(extra) - at - 4) // 8}Q", extra, at + 4)
            )
            try:
                return tuple(
                    next(values) if value == _SIZE_IN_ZIP64 else value
                    for value in (nbytes, packed, offset)
                )  # type: ignore[return-value]
            except (StopIteration, RuntimeError):
                break
        at += 4 + size
    raise CorruptError(f"{name}: refers to sizes in a Zip64 field, which is missing or too short")


def in_order(members: dict[str, Member], start: int) -> Iterator[tuple[str, Member, int]]:
    """Yield each member with the offset of what follows it in the zip: the next member, or the
    directory."""
    places = sorted((member.offset, key) for key, member in members.items())
    ends = [offset for offset, _ in places[1:]] + [start]
    return ((key, members[key], end) for (_, key), end in zip(places, ends, strict=bool(places)))


def _check_places(members: dict[str, Member], start: int, name: str) -> None:
    """Raise CorruptError if members overlap or lie outside of the zip: a zip bomb repeats the same
    bytes in many members."""
    for key, member, following in in_order(members, start):
        if (
            member.offset + LOCAL_HEADER.size + member.name_nbytes + member.packed_nbytes
            > following
        ):
            what = (
                f"its {member.packed_nbytes} bytes from byte {member.offset} on reach into what "
                f"begins at byte {following}"
            )
            raise CorruptError(f"{name}: {key}: {what}")
        if (
            member.method == STORED
            and member.nbytes != member.packed_nbytes
            and not member.is_encrypted
        ):
            raise CorruptError(
                f"{name}: {key}: is not compressed, but has {member.nbytes} bytes stored in "
                f"{member.packed_nbytes}"
            )


def _list_folders(directory: ZipDirectory, name: str) -> None:
    """Build the folders of the members, and remove the members that are folders or whose names are
    no path below the zip."""
    folders = directory.folders
    for key in list(directory.members):
        path = key.removesuffix("/")
        parts = path.split("/")
        if "" in parts or "." in parts or ".." in parts:
            del directory.members[key]  # nothing can name it
            continue
        is_folder = key.endswith("/")
        if is_folder:
            del directory.members[key]
            folders.setdefault(path, {})
        child, is_child_folder = path, is_folder
        while child:
            above, _, own = child.rpartition("/")
            known = folders.setdefault(above, {})
            if own in known and (known[own] is is_child_folder):
                break
            if own in known:
                raise CorruptError(f"{name}: {child} is both a file and a folder")
            known[own] = is_child_folder
            child, is_child_folder = above, True
