"""Zstandard and Blosc by the C functions inside imagecodecs: with a context for each thread, not
for each chunk, and only for the part of a chunk that is needed.

These functions return None for all that they do not decode. The caller then decodes the whole chunk
by the package, which raises the errors.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from wkwdask.array_types import ByteArray

FALLBACK_VARIABLE = "WKWDASK_ZSTD"
_LEAST_ERROR = ctypes.c_size_t(-200).value  # error codes are small negative numbers
_LEAST_SAVED_NBYTES = 1 << 17  # the largest block of Zstandard
# RFC 8878, 3.1.1: magic number, then the frame header descriptor
_ZSTD_MAGIC, _ZSTD_HAS_CHECKSUM, _ZSTD_DICTIONARY = b"\x28\xb5\x2f\xfd", 4, 3
_ZSTD_LEVEL, _ZSTD_CHECKSUM = 100, 201  # ZSTD_cParameter
# ZSTD_c_blockSplitterLevel of 1.5.7 and later; 1 for blocks of equal size: with others, labels take
# a third more time and become 8 % larger, and images do not change
_ZSTD_SPLITTER, _NO_SPLITTER = 1017, 1
_LARGEST_REUSED = 16 << 20  # bytes of memory of a thread to compress into
# c-blosc, README_CHUNK_FORMAT.rst: version, that of the compressor, flags, typesize, then nbytes,
# block size and cbytes; the start of each block follows, and each stream begins with its length
_BLOSC_HEADER, _NUMBER = struct.Struct("<BBBBIII"), struct.Struct("<I")
_BLOSC_VERSION = 2
_BYTE_SHUFFLE, _STORED, _BIT_SHUFFLE, _NO_SPLIT, _BLOSC_ZSTD = 1, 2, 4, 16, 4
_ALIGNMENT = 8  # of values that are used where they lie
_local = threading.local()

_FUNCTIONS = {
    "_zstd": (
        "ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_decompressDCtx", "ZSTD_getFrameContentSize",
        "ZSTD_decompressBegin", "ZSTD_nextSrcSizeToDecompress", "ZSTD_decompressContinue",
        "ZSTD_createCCtx", "ZSTD_freeCCtx", "ZSTD_CCtx_setParameter", "ZSTD_compress2",
        "ZSTD_compressBound",
    ),
    "_blosc": ("blosc_decompress_ctx", "blosc_getitem"),
}  # fmt: skip
_SIZE, _POINTER, _INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ZSTD_createDCtx": (_POINTER, ()),
    "ZSTD_freeDCtx": (_SIZE, (_POINTER,)),
    "ZSTD_decompressDCtx": (_SIZE, (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE)),
    "ZSTD_getFrameContentSize": (ctypes.c_ulonglong, (_POINTER, _SIZE)),
    "ZSTD_decompressBegin": (_SIZE, (_POINTER,)),
    "ZSTD_nextSrcSizeToDecompress": (_SIZE, (_POINTER,)),
    "ZSTD_decompressContinue": (_SIZE, (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE)),
    "ZSTD_createCCtx": (_POINTER, ()),
    "ZSTD_freeCCtx": (_SIZE, (_POINTER,)),
    "ZSTD_CCtx_setParameter": (_SIZE, (_POINTER, _INT, _INT)),
    "ZSTD_compress2": (_SIZE, (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE)),
    "ZSTD_compressBound": (_SIZE, (_SIZE,)),
    "blosc_decompress_ctx": (_INT, (_POINTER, _POINTER, _SIZE, _INT)),
    "blosc_getitem": (_INT, (_POINTER, _INT, _INT, _POINTER)),
}


@cache
def _functions(module: str) -> Any:
    """Return the C functions that a module of imagecodecs links or loads; None if it is not
    installed, or does not export all of them."""
    if os.environ.get(FALLBACK_VARIABLE) == "python":
        return None
    try:
        library = ctypes.CDLL(import_module(f"imagecodecs.{module}").__file__ or "")
        for name in _FUNCTIONS[module]:
            function = getattr(library, name)
            function.restype, function.argtypes = _SIGNATURES[name]
    except (ImportError, AttributeError, OSError):
        return None
    return library


class _Context:
    """Context of a thread, freed when the thread ends."""

    def __init__(self, pointer: int, free: Any) -> None:
        self.pointer, self._free = pointer, free

    def __del__(self) -> None:
        self._free(self.pointer)


def _context(zstd: Any, kind: str) -> int:
    """Return the context of this thread, ``DCtx`` to decompress or ``CCtx`` to compress."""
    context: _Context | None = getattr(_local, kind, None)
    if context is None:
        pointer = getattr(zstd, f"ZSTD_create{kind}")()
        if not pointer:
            raise MemoryError
        context = _Context(pointer, getattr(zstd, f"ZSTD_free{kind}"))
        setattr(_local, kind, context)
    return context.pointer


def _address(array: ByteArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def decompress(kind: str, data: bytes | memoryview, memory: ByteArray) -> ByteArray | None:
    """Decompress a whole chunk, into ``memory`` or where its values are stored uncompressed."""
    source = np.frombuffer(data, np.uint8)
    if kind == "zstd":
        zstd = _functions("_zstd")
        if zstd is None or not source.size:
            return None
        count = zstd.ZSTD_decompressDCtx(
            _context(zstd, "DCtx"), _address(memory), memory.size, _address(source), source.size
        )
        return None if count >= _LEAST_ERROR else memory[:count]
    if kind != "blosc" or (frame := _BloscFrame.parse(data, source, memory.size)) is None:
        return None
    return frame.stored() if frame.flags & _STORED else frame.decompress(memory)


def decompress_part(
    kind: str, data: bytes | memoryview, memory: ByteArray, first: int, end: int
) -> ByteArray | None:
    """Decompress the bytes from ``first`` to ``end`` of a chunk, whose size is that of ``memory``;
    return all of its bytes; the others are arbitrary. None also where the whole chunk takes as
    long, or only this shows whether its checksum is right."""
    source = np.frombuffer(data, np.uint8)
    if kind == "zstd":
        return memory if _zstd_start(source, memory, end) else None
    if kind != "blosc" or (frame := _BloscFrame.parse(data, source, memory.size)) is None:
        return None
    return frame.stored() if frame.flags & _STORED else frame.decompress_part(memory, first, end)


def _zstd_start(source: ByteArray, memory: ByteArray, end: int) -> bool:
    """Decompress the first bytes of a frame that has no checksum, block by block; return False if
    the whole frame must be decompressed."""
    zstd = _functions("_zstd")
    if zstd is None or end > memory.size - _LEAST_SAVED_NBYTES:
        return False
    if source[:4].tobytes() != _ZSTD_MAGIC or source.size < 5:
        return False
    address, place = _address(source), _address(memory)
    if (
        int(source[4]) & (_ZSTD_HAS_CHECKSUM | _ZSTD_DICTIONARY)
        or zstd.ZSTD_getFrameContentSize(address, source.size) != memory.size
    ):
        return False
    context, read, written = _context(zstd, "DCtx"), 0, 0
    zstd.ZSTD_decompressBegin(context)
    while written < end:
        wanted = zstd.ZSTD_nextSrcSizeToDecompress(context)
        if not wanted or wanted > source.size - read:
            return False
        count = zstd.ZSTD_decompressContinue(
            context, place + written, memory.size - written, address + read, wanted
        )
        if count >= _LEAST_ERROR:
            return False
        read, written = read + wanted, written + count
    return True


class _BloscFrame:
    """Frame of Blosc 1, of one chunk."""

    __slots__ = ("_block_nbytes", "_source", "_typesize", "flags", "nbytes")

    def __init__(
        self, source: ByteArray, flags: int, typesize: int, nbytes: int, block_nbytes: int
    ) -> None:
        self._source, self.flags, self._typesize = source, flags, typesize
        self.nbytes, self._block_nbytes = nbytes, block_nbytes

    @classmethod
    def parse(cls, data: bytes | memoryview, source: ByteArray, nbytes: int) -> _BloscFrame | None:
        """Parse the header of a chunk of ``nbytes``; None if its sizes are others."""
        if source.size < _BLOSC_HEADER.size:
            return None
        version, _, flags, typesize, stated, block_nbytes, stored = _BLOSC_HEADER.unpack_from(data)
        if (
            (version, stated, stored) != (_BLOSC_VERSION, nbytes, source.size)
            or not typesize
            or not block_nbytes
        ):
            return None
        return cls(source, flags, typesize, nbytes, block_nbytes)

    def stored(self) -> ByteArray | None:
        """Return the values of a frame that are not compressed."""
        values = self._source[_BLOSC_HEADER.size :]
        is_whole = values.size == self.nbytes and _address(values) % _ALIGNMENT == 0
        return values if is_whole else None

    def decompress(self, memory: ByteArray) -> ByteArray | None:
        """Decompress the whole frame."""
        blosc = _functions("_blosc")
        if blosc is None:
            return None
        count = blosc.blosc_decompress_ctx(_address(self._source), _address(memory), memory.size, 1)
        return memory if count == memory.size else None

    def decompress_part(self, memory: ByteArray, first: int, end: int) -> ByteArray | None:
        """Decompress the blocks of the frame that some bytes are in, or the start of its only
        one."""
        if self._block_nbytes >= self.nbytes:
            return self._decompress_start(memory, end)
        blosc, size = _functions("_blosc"), self._typesize
        first, end = first // size, -(-end // size)
        count = (end * size - 1) // self._block_nbytes - first * size // self._block_nbytes + 1
        if (
            blosc is None
            or count == -(-self.nbytes // self._block_nbytes)
            or end * size > self.nbytes
        ):
            return None
        done = blosc.blosc_getitem(
            _address(self._source), first, end - first, _address(memory) + first * size
        )
        return memory if done == (end - first) * size else None

    def _decompress_start(self, memory: ByteArray, end: int) -> ByteArray | None:
        is_shuffled = self._typesize > 1 and self.flags & _BYTE_SHUFFLE
        is_split = self._typesize > 1 and not self.flags & _NO_SPLIT
        if self.flags >> 5 != _BLOSC_ZSTD or is_shuffled or is_split or self.flags & _BIT_SHUFFLE:
            return None
        source, header = self._source, _BLOSC_HEADER.size
        if source.size < header + _NUMBER.size:
            return None
        start = _NUMBER.unpack_from(source.data, header)[0] + _NUMBER.size
        if start > source.size:
            return None
        end_of_stream = start + _NUMBER.unpack_from(source.data, start - _NUMBER.size)[0]
        if end_of_stream > source.size:
            return None
        return memory if _zstd_start(source[start:end_of_stream], memory, end) else None


def compress_zstd(values: ByteArray, level: int, *, has_checksum: bool) -> bytes | None:
    """Compress some bytes as one frame."""
    zstd = _functions("_zstd")
    if zstd is None:
        return None
    context, memory = _context(zstd, "CCtx"), _output_memory(zstd.ZSTD_compressBound(values.size))
    zstd.ZSTD_CCtx_setParameter(context, _ZSTD_LEVEL, level)
    zstd.ZSTD_CCtx_setParameter(context, _ZSTD_CHECKSUM, int(has_checksum))
    zstd.ZSTD_CCtx_setParameter(context, _ZSTD_SPLITTER, _NO_SPLITTER)
    count = zstd.ZSTD_compress2(
        context, _address(memory), memory.size, _address(values), values.size
    )
    return None if count >= _LEAST_ERROR else memory[:count].tobytes()


def _output_memory(nbytes: int) -> ByteArray:
    """Return memory of this thread to compress into."""
    memory: ByteArray | None = getattr(_local, "output", None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(nbytes, np.uint8)
        if nbytes <= _LARGEST_REUSED:
            _local.output = memory
    return memory
