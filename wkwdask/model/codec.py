"""Encoding of the voxels of one chunk."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError, TruncatedError
from wkwdask.kernels.arrays import copy_into, is_zero
from wkwdask.kernels.codecs.blosc_frames import are_zero_outside, convert_chunks
from wkwdask.kernels.codecs.blosc_layout import (
    ADD_FRAMES,
    COPY,
    FRAME_NBYTES,
    KEEP_BLOCKS,
    KEEP_FRAMES,
    REMOVE_FRAMES,
)
from wkwdask.model.chunk_grid import Vec4, from_cxyz, to_cxyz

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.array_types import AnyArray, BoolArray, ByteArray, IntArray
    from wkwdask.geometry.mag import Vec3
    from wkwdask.model.writing.file_buffer import Arena, FileBuffer

_LARGEST_REUSED = 16 << 20  # bytes
_local = threading.local()

Reframe = Callable[[bytes, Vec4, str, int], bytes | None]
"""Converts the stored bytes of a chunk to those of another codec, given the shape of its part
inside the array, its file and its offset there.

It may return None for a chunk whose voxels are all zero.
"""

LZ4_BLOCK, LZ4_FRAME = "lz4", "blosc-lz4-0"
"""Kinds of streams: a bare LZ4 block, and the same block in a Blosc frame."""


def max_file_nbytes(codec: ChunkCodec, shape: Sequence[int]) -> int:
    """Return the largest size of a file with one chunk of shape (c, x, y, z) [bytes]: compression
    makes incompressible bytes a little longer."""
    largest = codec.largest_nbytes(shape)
    return largest + largest // 8 + 4096


def decoding_memory(nbytes: int) -> ByteArray:
    """Return memory of this thread for the bytes of a decoded chunk, which it uses again for the
    next one.

    The first use of new memory often takes longer than decoding, because the system clears each
    page.
    """
    return _thread_memory("decoded", nbytes)


def encoding_memory(nbytes: int) -> ByteArray:
    """Return memory of this thread to arrange the values of a chunk before they are compressed. It
    is not that of :func:`decoding_memory`, where the values may come from."""
    return _thread_memory("encoded", nbytes)


def _thread_memory(name: str, nbytes: int) -> ByteArray:
    if nbytes > _LARGEST_REUSED:
        return np.empty(nbytes, np.uint8)
    memory: ByteArray | None = getattr(_local, name, None)
    if memory is None or memory.size < nbytes:
        memory = np.empty(nbytes, np.uint8)
        setattr(_local, name, memory)
    return memory[:nbytes]


@dataclass(frozen=True, slots=True)
class Encoding:
    """Encoding of a whole chunk without its header, in terms that all formats share: chunks of
    equal encodings have interchangeable bytes."""

    dtype: str
    """Type of the values with its byte order, as numpy writes it."""
    shape: Vec4
    """Shape (c, x, y, z) of a whole chunk."""
    order: str
    """Axes from the slowest to the fastest; axes of length 1 are omitted."""
    compression: str
    """Kind of the compressed stream without its level; ``raw`` for none."""
    encoder: str = field(default="", compare=False)
    """Encoder of the stream, if several make streams of this kind."""

    @classmethod
    def of(
        cls, dtype: np.dtype[Any], shape: Vec4, order: str, compression: str, encoder: str = ""
    ) -> Encoding:
        long = [letter for letter, n in zip("cxyz", shape, strict=True) if n > 1]
        return cls(
            dtype.str,
            shape,
            "".join(letter for letter in order if letter in long),
            compression,
            encoder,
        )

    @property
    def nbytes(self) -> int:
        """Size of a decoded chunk."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class FrameConversion:
    """Compiled conversion of many chunks, see
    :func:`wkwdask.kernels.codecs.blosc_frames.convert_chunks`."""

    kind: int
    encoding: Encoding

    def convert(self, memory: ByteArray, places: IntArray, out: ByteArray) -> IntArray:
        """Convert chunks up to the first that must be decoded; return the size of each, 0 for a
        chunk of zeros."""
        return convert_chunks(
            memory,
            places,
            self.kind,
            self.encoding.nbytes,
            np.dtype(self.encoding.dtype).itemsize,
            out,
        )

    def are_zero_outside(self, memory: ByteArray, places: IntArray, boxes: IntArray) -> BoolArray:
        """Return which chunks need not be cut: those that have only zeros outside of a box, see
        :func:`convert_chunks`; others may have too."""
        channels, x, y, z = shape = self.encoding.shape
        dtype = np.dtype(self.encoding.dtype)
        if not x == y == z or self.encoding.order != Encoding.of(dtype, shape, "zyxc", "").order:
            return np.zeros(len(places), np.bool_)
        if self.kind in (REMOVE_FRAMES, KEEP_FRAMES):
            places = places + np.array([FRAME_NBYTES, -FRAME_NBYTES])
        return are_zero_outside(
            memory, places, boxes, x, channels * dtype.itemsize, is_compressed=self.kind != COPY
        )

    def convert_one(self, data: bytes) -> bytes | None:
        """Convert a chunk; returns empty bytes for zeros, and None if it must be decoded."""
        out = np.empty(len(data) + FRAME_NBYTES, np.uint8)
        sizes = self.convert(
            np.frombuffer(data, np.uint8), np.array([[0, len(data)]], np.int64), out
        )
        return out[: sizes[0]].tobytes() if len(sizes) else None


def blosc_kind(compressor: str, shuffle: int, itemsize: int) -> str:
    """Return the kind of a Blosc stream: its compressor and its shuffle. Shuffle -1 means bits for
    values of one byte, else bytes."""
    compressor = "lz4" if compressor == "lz4hc" else compressor  # its encoder makes LZ4 blocks too
    return f"blosc-{compressor}-{shuffle if shuffle >= 0 else 2 if itemsize == 1 else 1}"


class ChunkCodec(ABC):
    """Conversion between the bytes of one chunk and its voxels (c, x, y, z).

    The codec handles axis order and byte order. Any input must decode or raise FormatError or
    UnsupportedError.
    """

    __slots__ = ()

    is_opaque = False
    """Whether single chunks can be neither decoded nor encoded: the layout reads boxes instead."""
    is_lossy = False
    """Whether encoding changes values."""
    decodes_chunks = False
    """Whether decoding chunk by chunk (while a chunk is in the CPU cache) is faster than decoding
    into a larger box."""

    is_delimited = False
    """Whether stored bytes that begin or end in the middle of a chunk do not decode."""

    @property
    def name(self) -> str:
        """Name of the compression, if it has one."""
        return ""

    @property
    def shared_encoding(self) -> Encoding | None:
        """Encoding of whole chunks, None if it has no equal in other formats."""
        return None

    def without_header(self, data: bytes, source: str) -> bytes | None:
        """Return the encoded values of a stored chunk, None if it is not whole."""
        del source
        return data

    def with_header(self, values: bytes) -> bytes:
        """Return a whole chunk to store for its encoded values."""
        return values

    @abstractmethod
    def largest_nbytes(self, shape: Sequence[int]) -> int:
        """Return the largest valid size of an encoded chunk of shape (c, x, y, z) [bytes]; larger
        ones are broken and are not read."""

    def slab_nbytes(self, shape: Vec4) -> int:
        """Return the size of one z of a chunk that is stored uncompressed with z slowest, so that
        some of its z decode like a shorter chunk [bytes]; 0 for all other chunks."""
        del shape
        return 0

    @abstractmethod
    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> AnyArray:
        """Decode a chunk.

        Parameters
        ----------
        data : bytes
            Stored bytes of the chunk.
        shape : tuple of 4 int
            Shape (c, x, y, z) that the grid states [voxels].
        source : str
            Path of the file, for errors.
        offset : int
            Offset of the chunk in the file [bytes], for errors.

        Returns
        -------
        ndarray, shape (c, x, y, z)
            Voxels in the stored data type, valid until this thread decodes the next chunk. Formats
            that store a shape with each chunk may return another shape.

        Raises
        ------
        FormatError
            The bytes violate the format.
        UnsupportedError
            The bytes use a feature of the format that is not implemented.
        """

    def decode_part(
        self, data: bytes, shape: Vec4, part: tuple[slice, ...], source: str, offset: int = 0
    ) -> AnyArray:
        """Decode a part of a chunk, see :meth:`decode`. Errors in the rest of it may not show."""
        return self.decode(data, shape, source, offset)[part]

    @abstractmethod
    def encode(self, voxels: AnyArray, source: str) -> bytes:
        """Encode a chunk (c, x, y, z): a whole one, or its part inside the array if the grid
        truncates chunks; ``source`` names the file in errors."""

    def encode_in_arena(self, voxels: AnyArray, arena: Arena, source: str) -> bytes | memoryview:
        """Encode a chunk as :meth:`encode` does, perhaps into ``arena``: then the result is valid
        until that is released."""
        del arena
        return self.encode(voxels, source)

    def check_packages(self, source: str) -> None:  # noqa: B027  # most codecs need no package of an extra
        """Raise ModuleNotFoundError if encoding needs a package that is not installed. A job asks
        before it writes anything."""

    def decode_into(
        self,
        data: bytes,
        shape: Vec4,
        out: AnyArray,
        corner: Sequence[int],
        source: str,
        offset: int = 0,
    ) -> bool:
        """Decode the part of a chunk that lies inside an array, see :meth:`decode`.

        ``corner`` is the place of the chunk's first voxel in ``out`` (c, x, y, z); it may be
        negative. Returns False if all voxels are zero: then ``out`` may be unchanged.
        """
        where, part = clip(corner, shape, out.shape)
        voxels = self.decode_part(data, shape, part, source, offset)
        if is_zero(voxels):
            return False
        region = out[where]
        if voxels.shape != region.shape:  # a stored shape that is smaller than that of the grid
            region[...] = 0
            region = region[tuple(map(slice, voxels.shape))]
        copy_into(voxels.astype(out.dtype, order="K", copy=False), region)
        return True

    def decode_chunk(
        self, data: bytes, shape: Vec4, memory: AnyArray, source: str, offset: int = 0
    ) -> AnyArray | None:
        """Decode a whole chunk, perhaps into ``memory`` (at least one chunk), see :meth:`decode`;
        returns None if all voxels are zero."""
        c, x, y, z = shape
        # some formats store whole chunks at the end of an array
        voxels = self.decode(data, shape, source, offset)[:c, :x, :y, :z]
        if is_zero(voxels):
            return None
        if voxels.shape == shape and voxels.dtype == memory.dtype:
            return voxels
        out = memory[:c, :x, :y, :z]
        if voxels.shape != shape:  # a stored shape that is smaller than that of the grid
            out[...] = 0
        copy_into(
            voxels.astype(out.dtype, order="K", copy=False), out[tuple(map(slice, voxels.shape))]
        )
        return out

    def reframe(self, source: ChunkCodec) -> Reframe | None:
        """Return the conversion from the stored bytes of another codec without decoding voxels,
        None if there is none.

        Between formats, chunks at the end of an array are encoded again: formats store them whole
        or cut off. LZ4 blocks and uncompressed values that do not decode to the size of a chunk are
        errors: this shows without decoding.
        """
        theirs, ours, conversion = (
            source.shared_encoding,
            self.shared_encoding,
            self.frame_conversion(source),
        )

        def check(values: bytes | None, data: bytes, shape: Vec4, name: str, offset: int) -> None:
            if conversion is not None and (
                values is None or conversion.convert_one(values) is None
            ):
                # raises the error, unless only the decoder knows this form, such as frames of
                # several blocks
                source.decode(data, shape, name, offset)

        if source == self:

            def keep(data: bytes, shape: Vec4, name: str, offset: int) -> bytes:
                check(
                    source.without_header(data, name)
                    if ours is not None and shape == ours.shape
                    else None,
                    data,
                    shape,
                    name,
                    offset,
                )
                return data

            return keep
        if ours is None or (theirs != ours and conversion is None):
            return None

        def convert(data: bytes, shape: Vec4, name: str, offset: int) -> bytes | None:
            values = source.without_header(data, name) if shape == ours.shape else None
            if values is not None and theirs == ours:
                check(values, data, shape, name, offset)
            elif values is not None and conversion is not None:
                values = conversion.convert_one(values)
            if values is not None:
                return self.with_header(values) if values else None
            c, x, y, z = map(slice, shape)
            voxels = source.decode(data, shape, name, offset)[c, x, y, z]
            return None if is_zero(voxels) else self.encode(voxels, name)

        return convert

    def frame_conversion(self, source: ChunkCodec) -> FrameConversion | None:
        """Return the compiled conversion from the encoded values of another codec, None if there is
        none."""
        theirs, ours = source.shared_encoding, self.shared_encoding
        if theirs is None or ours is None or replace(theirs, compression=ours.compression) != ours:
            return None
        kinds = {
            ("raw", "raw"): COPY,
            (LZ4_BLOCK, LZ4_FRAME): ADD_FRAMES,
            (LZ4_FRAME, LZ4_BLOCK): REMOVE_FRAMES,
            (LZ4_BLOCK, LZ4_BLOCK): KEEP_BLOCKS,
            (LZ4_FRAME, LZ4_FRAME): KEEP_FRAMES,
        }
        kind = kinds.get((theirs.compression, ours.compression))
        return None if kind is None else FrameConversion(kind, ours)

    def encode_batch(
        self,
        array: AnyArray,
        corners: IntArray,
        shape: Vec3,
        output: FileBuffer,
        source: str,
        *,
        stores_zeros: bool,
    ) -> tuple[IntArray, int]:
        """Encode chunks of an array (c, x, y, z) and append them to a file.

        Parameters
        ----------
        array : ndarray, shape (c, x, y, z)
            Voxels of all chunks.
        corners : ndarray of int64, shape (n, 3)
            First voxel of each chunk in the array.
        shape : tuple of 3 int
            Shape (x, y, z) of a chunk [voxels].
        output : FileBuffer
            File to append to.
        source : str
            Path of the file, for errors.
        stores_zeros : bool
            Whether all-zero chunks are stored too.

        Returns
        -------
        sizes : ndarray of int64, shape (n,)
            Encoded size of each chunk [bytes], 0 for chunks that are not stored.
        nonzero : int
            Number of chunks that are not all zero.
        """
        sizes, nonzero = np.zeros(len(corners), np.int64), 0
        for n, (x, y, z) in enumerate(corners.tolist()):
            voxels = array[:, x : x + shape[0], y : y + shape[1], z : z + shape[2]]
            is_empty = is_zero(voxels)
            nonzero += not is_empty
            if stores_zeros or not is_empty:
                data = self.encode(voxels, source)
                output.append(np.frombuffer(data, np.uint8))
                sizes[n] = len(data)
        return sizes, nonzero


def decode_raw(
    data: bytes, shape: Vec4, stored: np.dtype[Any], axes: str, source: str, offset: int
) -> AnyArray:
    """Return uncompressed values as an array of shape (c, x, y, z); ``axes`` has one letter per
    stored axis, slowest first."""
    expected = math.prod(shape) * stored.itemsize
    if len(data) != expected:
        error = TruncatedError if len(data) < expected else CorruptError
        raise error(
            f"{source}: byte {offset}: a raw chunk of {shape[1:]} voxels has {expected} bytes, "
            f"found {len(data)}"
        )
    return to_cxyz(
        np.frombuffer(data, stored).reshape(
            [1 if letter == "-" else shape["cxyz".index(letter)] for letter in axes]
        ),
        axes,
    )


@dataclass(frozen=True, slots=True)
class RawCodec(ChunkCodec):
    """Codec of uncompressed values."""

    stored: np.dtype[Any]
    """Stored data type with its byte order."""
    axes: str = "czyx"
    """One letter per axis, slowest first: ``c``, ``x``, ``y``, ``z``, or ``-`` for an axis of
    length 1."""

    def largest_nbytes(self, shape: Sequence[int]) -> int:
        return math.prod(shape) * self.stored.itemsize

    def decode(self, data: bytes, shape: Vec4, source: str, offset: int = 0) -> AnyArray:
        return decode_raw(data, shape, self.stored, self.axes, source, offset)

    def encode(self, voxels: AnyArray, source: str) -> bytes:
        return from_cxyz(voxels.astype(self.stored, copy=False), self.axes).tobytes()


def clip(
    corner: Sequence[int], shape: Sequence[int], array_shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the slices of an array that a chunk covers, and the slices of the chunk that lie
    inside the array."""
    where, part = [], []
    # without calls of min and max, because small boxes ask for each chunk
    for at, length, size in zip(corner, shape, array_shape, strict=True):
        low, high = at if at > 0 else 0, at + length
        if high > size:
            high = size
        if high < low:
            high = low
        where.append(slice(low, high))
        part.append(slice(low - at, high - at))
    return tuple(where), tuple(part)
