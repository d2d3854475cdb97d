"""The compiled loops of ``small_files``. Imported only where the C library has the functions below."""

from __future__ import annotations

import errno
import os
from typing import Any

import numba
import numpy as np
from numba import types

from wkwdask.kernels.blocks_layout import CODE, OFFSET, SIZE, START, X, Y, Z
from wkwdask.kernels.compiler import helper, kernel
from wkwdask.kernels.small_files import CLOSE, ERRNO, FOLDER_FLAGS, OPENAT, PREAD

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
def _is_sound(memory: Any, start: Any, nbytes: Any, head: Any, compressed: Any, blocks: Any, block_nbytes: Any, table_end: Any) -> Any:
    """Tell whether the file has a header like that of the mag, and all its blocks."""
    if nbytes < table_end:
        return False
    for n in range(head.size):
        if memory[start + n] != head[n] and not (n == _BLOCK_TYPE_AT and compressed and _LZ4 <= memory[start + n] <= _LZ4HC):
            return False
    end = _u64(memory, start + 8)
    if end < table_end or end > nbytes:
        return False
    if not compressed:
        return nbytes - end >= blocks * block_nbytes
    for n in range(blocks):
        before, end = end, _u64(memory, start + 16 + 8 * n)
        if end < before or end > nbytes or _MAX_RATIO * (end - before) < block_nbytes:
            return False
    return True


@helper
def _list_blocks(
    memory: Any, start: Any, compressed: Any, file_len: Any, block_len: Any, block_nbytes: Any, corner: Any, shape: Any, table: Any, n: Any
) -> Any:
    """Write a row for each block of the file that touches the array; returns the number of rows."""
    first = _u64(memory, start + 8)
    for code in range(file_len * file_len * file_len):
        x, y, z = corner
        bit, rest = block_len, code
        while rest:
            x, y, z = x + (rest & 1) * bit, y + (rest >> 1 & 1) * bit, z + (rest >> 2 & 1) * bit
            bit, rest = 2 * bit, rest >> 3
        offset, end = first + code * block_nbytes, first + (code + 1) * block_nbytes
        if compressed:
            offset, end = _u64(memory, start + 8 + 8 * code), _u64(memory, start + 16 + 8 * code)
        if min(x, y, z) > -block_len and x < shape[1] and y < shape[2] and z < shape[3]:
            table[n, CODE], table[n, OFFSET], table[n, SIZE], table[n, START] = code, offset, end - offset, start + offset
            table[n, X], table[n, Y], table[n, Z] = x, y, z
            n += 1
    return n


@kernel
def read_files(
    mag: Any, low: Any, counts: Any, first: Any, head: Any, compressed: Any, file_len: Any, block_len: Any, block_nbytes: Any,
    most_nbytes: Any, origin: Any, shape: Any, memory: Any, most_files: Any,
) -> Any:  # fmt: skip
    """Read files until the memory is full; returns the number of the next file, the blocks, the absent files and the unusual ones."""
    blocks = file_len * file_len * file_len
    table_end = 16 + 8 * blocks * compressed
    edge = file_len * block_len
    total = counts[0] * counts[1] * counts[2]
    count = min(most_files, total - first)
    table = np.empty((count * blocks, 7), np.int64)
    absent = np.zeros((count, 7), np.int64)
    unusual = np.empty((count, 3), np.int64)
    num_blocks, num_absent, num_unusual, end = 0, 0, 0, 0
    name = np.empty(_NAME_NBYTES, np.uint8)
    z_folder, y_folder = _ABSENT, _ABSENT
    n = first
    while n < first + count and memory.size - end >= most_nbytes:
        place = (n % counts[0], n // counts[0] % counts[1], n // (counts[0] * counts[1]))
        x, y, z = low[0] + place[0], low[1] + place[1], low[2] + place[2]
        if n == first or place[0] == 0:
            if n == first or place[1] == 0:
                _release(z_folder)
                z_folder = _open_folder(mag, _z, z, name)
            _release(y_folder)
            y_folder = _open_folder(z_folder, _y, y, name)
        corner = (x * edge - origin[0], y * edge - origin[1], z * edge - origin[2])
        got = _read_file(y_folder, x, name, memory, end, most_nbytes)
        if got == _ABSENT:
            absent[num_absent, X], absent[num_absent, Y], absent[num_absent, Z] = corner
            num_absent += 1
        elif got >= 0 and _is_sound(memory, end, got, head, compressed, blocks, block_nbytes, table_end):
            num_blocks = _list_blocks(memory, end, compressed, file_len, block_len, block_nbytes, corner, shape, table, num_blocks)
            end += got
        else:
            unusual[num_unusual, 0], unusual[num_unusual, 1], unusual[num_unusual, 2] = x, y, z
            num_unusual += 1
        n += 1
    _release(y_folder)
    _release(z_folder)
    return n, table[:num_blocks], absent[:num_absent], unusual[:num_unusual]
