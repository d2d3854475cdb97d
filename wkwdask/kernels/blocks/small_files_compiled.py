"""The compiled loops of ``small_files``. Imported only where the C library has the functions below."""

from __future__ import annotations

import errno
import os
from typing import Any

import numba
import numpy as np
from numba import types

from wkwdask.kernels.blocks.layout import CODE, OFFSET, SIZE, START, X, Y, Z
from wkwdask.kernels.blocks.libc_names import CLOSE, ERRNO, FOLDER_FLAGS, OPENAT, PREAD
from wkwdask.kernels.compiler import helper, kernel

_numba: Any = numba  # which says little of its types
_openat: Any = types.ExternalFunction(OPENAT, types.int32(types.int32, types.intp, types.int32))
_pread: Any = types.ExternalFunction(PREAD, types.intp(types.int32, types.intp, types.intp, types.int64))
_close: Any = types.ExternalFunction(CLOSE, types.int32(types.int32))
_errno_place: Any = types.ExternalFunction(ERRNO, _numba.types.CPointer(types.int32)())

_ENOENT = errno.ENOENT
_NOFOLLOW = os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for
_NAME = FOLDER_FLAGS & ~os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOFOLLOW
_FOLDER = FOLDER_FLAGS
_ABSENT, _UNUSUAL = -1, -2  # in place of an open file or folder
_MAX_RATIO = 255  # no LZ4 block decodes to more than this many times its length
_NAME_NBYTES = 32
_BLOCK_TYPE_AT = 5
_LZ4, _LZ4HC = 2, 3
_x, _y, _z = ord("x"), ord("y"), ord("z")


@helper
def _put_name(name: Any, letter: Any, number: Any) -> Any:
    """Write a letter and a number that is not negative, ended by a zero byte; returns the place of that."""
    digits = 1
    rest = number // 10
    while rest:
        digits += 1
        rest //= 10
    name[0] = letter
    rest = number
    for n in range(digits, 0, -1):
        name[n] = ord("0") + rest % 10
        rest //= 10
    name[digits + 1] = 0
    return digits + 1


@helper
def _open(folder: Any, name: Any, flags: Any) -> Any:
    return _openat(np.int32(folder), np.intp(name.ctypes.data), np.int32(flags))


@helper
def _errno() -> Any:
    return _numba.carray(_errno_place(), 1)[0]


@helper
def _release(fd: Any) -> None:
    if fd >= 0:
        _close(np.int32(fd))


@helper
def _open_folder(parent: Any, letter: Any, number: Any, name: Any) -> Any:
    """Open ``z{number}`` or ``y{number}``; what is a link to nowhere, or no folder, or cannot be opened, is unusual."""
    if parent < 0:
        return parent
    if number < 0:
        return _ABSENT
    _put_name(name, letter, number)
    fd = _open(parent, name, _FOLDER)
    if fd >= 0:
        return fd
    if _errno() != _ENOENT:
        return _UNUSUAL
    fd = _open(parent, name, _NAME)
    if fd < 0 and _errno() == _ENOENT:
        return _ABSENT
    _release(fd)
    return _UNUSUAL


@helper
def _read_file(folder: Any, number: Any, name: Any, memory: Any, start: Any, nbytes: Any) -> Any:
    """Read ``x{number}.wkw`` up to so many bytes; returns how many there are."""
    if folder < 0:
        return folder
    if number < 0:
        return _ABSENT
    at = _put_name(name, _x, number)
    name[at], name[at + 1], name[at + 2], name[at + 3], name[at + 4] = ord("."), ord("w"), ord("k"), ord("w"), 0
    fd = _open(folder, name, _FILE | _NOFOLLOW)
    if fd < 0:
        if _errno() == _ENOENT:
            return _ABSENT
        fd = _open(folder, name, _FILE)  # a link
        if fd < 0:
            return _UNUSUAL
    got = _pread(fd, np.intp(memory.ctypes.data) + start, np.intp(nbytes), np.int64(0))
    _close(fd)
    return got if got >= 0 else _UNUSUAL


@helper
def _u64(memory: Any, at: Any) -> Any:
    """Read eight bytes, little-endian; what needs the highest bit comes out negative."""
    value = np.int64(0)
    for n in range(8):
        value |= np.int64(memory[at + n]) << (8 * n)
    return value


@helper
def _find_block(memory: Any, start: Any, nbytes: Any, head: Any, compressed: Any, block_nbytes: Any) -> Any:
    """Give first byte and length of the block in a file; a length of -1 where the header is not like the mag's, or the block is not all there."""
    broken = (0, -1)
    table_end = 16 + 8 * compressed
    if nbytes < table_end:
        return broken
    for n in range(head.size):
        if memory[start + n] != head[n] and not (n == _BLOCK_TYPE_AT and compressed and _LZ4 <= memory[start + n] <= _LZ4HC):
            return broken
    offset = _u64(memory, start + 8)
    if offset < table_end or offset > nbytes:
        return broken
    end = _u64(memory, start + 16) if compressed else offset + block_nbytes
    if end < offset or end > nbytes or _MAX_RATIO * (end - offset) < block_nbytes:
        return broken
    return offset, end - offset


@helper
def _put_corner(row: Any, x: Any, y: Any, z: Any, edge: Any, origin: Any) -> None:
    row[X], row[Y], row[Z] = x * edge - origin[0], y * edge - origin[1], z * edge - origin[2]


@kernel
def read_files(
    mag: Any, low: Any, counts: Any, first: Any, head: Any, compressed: Any, block_len: Any, block_nbytes: Any, most_nbytes: Any,
    origin: Any, memory: Any, most_files: Any,
) -> Any:  # fmt: skip
    """Read files until the memory is full; returns the number of the next file, the blocks, the absent files and the unusual ones."""
    total = counts[0] * counts[1] * counts[2]
    stop = min(first + most_files, total)
    table = np.empty((stop - first, 7), np.int64)
    absent = np.zeros((stop - first, 7), np.int64)
    unusual = np.empty((stop - first, 3), np.int64)
    num_blocks, num_absent, num_unusual, end = 0, 0, 0, 0
    name = np.empty(_NAME_NBYTES, np.uint8)
    z_folder, y_folder = _ABSENT, _ABSENT
    n = first
    while n < stop and memory.size - end >= most_nbytes:
        x, y, z = low[0] + n % counts[0], low[1] + n // counts[0] % counts[1], low[2] + n // (counts[0] * counts[1])
        if n == first or x == low[0]:
            if n == first or y == low[1]:
                _release(z_folder)
                z_folder = _open_folder(mag, _z, z, name)
            _release(y_folder)
            y_folder = _open_folder(z_folder, _y, y, name)
        got = _read_file(y_folder, x, name, memory, end, most_nbytes)
        offset, size = _find_block(memory, end, got, head, compressed, block_nbytes)
        if size >= 0:
            table[num_blocks, CODE], table[num_blocks, OFFSET], table[num_blocks, SIZE], table[num_blocks, START] = 0, offset, size, end + offset
            _put_corner(table[num_blocks], x, y, z, block_len, origin)
            num_blocks += 1
            end += got
        elif got == _ABSENT:
            _put_corner(absent[num_absent], x, y, z, block_len, origin)
            num_absent += 1
        else:
            unusual[num_unusual, 0], unusual[num_unusual, 1], unusual[num_unusual, 2] = x, y, z
            num_unusual += 1
        n += 1
    _release(y_folder)
    _release(z_folder)
    return n, table[:num_blocks], absent[:num_absent], unusual[:num_unusual]
