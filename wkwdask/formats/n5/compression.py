"""How the blocks of an N5 dataset are compressed, and what a Zarr v3 codec of the same bytes is called.

Core are raw, gzip (or zlib), bzip2, xz and lz4 (N5 specification 4.0.0); blosc and zstd are extensions that Java, tensorstore and zarr know too. The lz4 of N5
is the block stream of lz4-java, which no Zarr codec reads; its checksums are not looked at.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, TruncatedError, UnsupportedError
from wkwdask.formats.extras import need
from wkwdask.formats.precomputed.gzip_stream import compress_gzip, decompress_gzip

if TYPE_CHECKING:
    from collections.abc import Callable

    from wkwdask.formats.json_text import Problems

TYPES = ("raw", "gzip", "zlib", "bzip2", "xz", "lz4", "zstd", "blosc")
"""Compressions whose blocks are read; all but lz4 can be written."""
_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_BLOSC_HEADER = 16
_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBIII")  # magic, token, compressed and original length, checksum
_LZ4_RAW, _LZ4_PACKED = 0x10, 0x20
_XZ_MEMORY_NBYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Compression:
    """How blocks are compressed."""

    type: str = "raw"
    """One of ``TYPES``."""
    options: tuple[tuple[str, Any], ...] = ()
    """What ``attributes.json`` says besides."""

    def option(self, name: str, default: Any = None) -> Any:
        """Give an option, or a default where it is not given."""
        return dict(self.options).get(name, default)

    @property
    def stream(self) -> str:
        """What the bytes are: gzip that says ``useZlib`` is zlib."""
        return "zlib" if self.type == "gzip" and self.option("useZlib") is True else self.type

    def to_json(self) -> dict[str, Any]:
        """Give what ``attributes.json`` says."""
        return {"type": self.type, **dict(self.options)}


def make_compression(name: str, level: int | None = None) -> Compression:
    """Choose a compression for blocks that are written.

    Parameters
    ----------
    name : str
        One of ``TYPES`` but lz4.
    level : int, optional
        How hard to try; by default as other writers do.

    Raises
    ------
    ValueError
        There is no such compression or level, or it is not written.
    """
    # name of the option, its default, least and greatest value
    known = {"raw": None, "gzip": ("level", -1, -1, 9), "zlib": ("level", -1, -1, 9), "bzip2": ("blockSize", 9, 1, 9), "xz": ("preset", 6, 0, 9)}
    known |= {"zstd": ("level", 3, 1, 22), "blosc": ("clevel", 5, 0, 9)}
    if name not in known:
        raise ValueError(f"compression of N5 must be one of {', '.join(known)}, got {name!r}")
    setting = known[name]
    if setting is None:
        if level is not None:
            raise ValueError("level= is for compressed blocks, and these are raw")
        return Compression()
    option, default, least, greatest = setting
    if level is not None and not least <= level <= greatest:
        raise ValueError(f"level of {name} must be in {least}..{greatest}, got {level}")
    options: dict[str, Any] = {option: default if level is None else level}
    if name == "gzip":
        options["useZlib"] = False
    if name == "blosc":
        options = {"cname": "zstd", **options, "shuffle": 1, "blocksize": 0}
    return Compression("gzip", (("level", options["level"]), ("useZlib", True))) if name == "zlib" else Compression(name, tuple(options.items()))


def parse_compression(document: dict[str, Any], source: str, problems: Problems) -> Compression:
    """Read what ``attributes.json`` says of the compression; old files name it by ``compressionType``.

    Raises
    ------
    UnsupportedError
        It is one that is not known.
    """
    value = document.get("compression", {"type": document["compressionType"]} if "compressionType" in document else None)
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        problems.add("compression", 'an object with a "type"', value)
        return Compression()
    if value["type"] not in TYPES:
        raise UnsupportedError(f"{source}: compression {value['type']!r}, which is not read; known are {', '.join(TYPES)}")
    return Compression(value["type"], tuple((name, item) for name, item in value.items() if name != "type" and not isinstance(item, (dict, list))))


# ------------------------------------------------------------------------------------------------ bytes


def decompress(data: memoryview, compression: Compression, nbytes: int, source: str, offset: int) -> bytes | memoryview:
    """Undo the compression of a block.

    Parameters
    ----------
    data : memoryview of bytes
        All that follows the block's header.
    compression : Compression
        How it is compressed.
    nbytes : int
        How many bytes come out of it; no more are ever allocated.
    source : str
        The file, for errors.
    offset : int
        Byte of the file at which the data starts, for errors.

    Returns
    -------
    bytes or memoryview
        ``nbytes`` bytes.

    Raises
    ------
    CorruptError
        It is no such stream, or gives more bytes.
    ModuleNotFoundError
        A package is not installed.
    TruncatedError
        It gives fewer bytes.
    """
    found = _DECODERS[compression.stream](data, nbytes, source, offset)
    if len(found) != nbytes:
        error = TruncatedError if len(found) < nbytes else CorruptError
        what = f"{compression.stream} data of {len(data)} bytes give"
        raise error(f"{source}: byte {offset}: {what} {'at least ' * (len(found) > nbytes)}{len(found)} bytes, expected {nbytes}")
    return found


def _raw(data: memoryview, nbytes: int, source: str, offset: int) -> memoryview:
    del nbytes, source, offset
    return data


def _gzip(data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    return decompress_gzip(bytes(data), nbytes, source, offset)


def _zlib(data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    stream = zlib.decompressobj()
    return _to_end(stream, lambda: stream.decompress(data, nbytes + 1), zlib.error, "zlib", data, nbytes, source, offset)


def _bzip2(data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    stream = bz2.BZ2Decompressor()
    return _to_end(stream, lambda: stream.decompress(data, nbytes + 1), (OSError, ValueError), "bzip2", data, nbytes, source, offset)


def _xz(data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY_NBYTES)
    return _to_end(stream, lambda: stream.decompress(data, nbytes + 1), lzma.LZMAError, "xz", data, nbytes, source, offset)


def _to_end(stream: Any, decompress: Callable[[], bytes], errors: Any, name: str, data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Take all that a stream gives, up to one byte more than expected."""
    try:
        out = decompress()
    except errors as error:
        raise CorruptError(f"{source}: byte {offset}: expected a {name} stream of {len(data)} bytes: {error}") from None
    if not stream.eof and len(out) <= nbytes:
        raise TruncatedError(f"{source}: byte {offset}: a {name} stream of {len(data)} bytes is cut off")
    return out


def _zstd(data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    return _by_imagecodecs(lambda codecs: codecs.zstd_decode(data, out=max(nbytes, 1)), "Zstandard", data, nbytes, source, offset)


def _blosc(data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Decode Blosc, after a look at its header: the library believes the lengths that it states."""
    if len(data) < _BLOSC_HEADER:
        raise TruncatedError(f"{source}: byte {offset}: Blosc data of {len(data)} bytes, expected at least {_BLOSC_HEADER}")
    stated, _, stored = struct.unpack_from("<III", data, 4)
    if stored > len(data):
        raise TruncatedError(f"{source}: byte {offset}: Blosc data of {stored} bytes, but the file has {len(data)} here")
    if stored < len(data) or stated != nbytes:
        raise CorruptError(
            f"{source}: byte {offset}: Blosc data that say they have {stored} bytes and give {stated}, expected {len(data)} bytes that give {nbytes}"
        )
    return _by_imagecodecs(lambda codecs: codecs.blosc_decode(data, out=nbytes), "Blosc", data, nbytes, source, offset)


def _by_imagecodecs(decode: Callable[[Any], bytes], name: str, data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    codecs = need("imagecodecs", source, "zarr")
    try:
        return decode(codecs)
    except MemoryError:
        raise
    except Exception as error:
        raise CorruptError(f"{source}: byte {offset}: expected {name} data of {len(data)} bytes that give {nbytes}: {error}") from None


def _lz4(data: memoryview, nbytes: int, source: str, offset: int) -> bytes:
    """Decode the block stream of lz4-java (net.jpountz.lz4.LZ4BlockOutputStream): pieces with headers of their own, the last one empty."""
    import lz4.block

    out, at = bytearray(), 0
    while at < len(data):
        if len(data) - at < _LZ4_HEADER.size:
            raise TruncatedError(f"{source}: byte {offset + at}: {len(data) - at} bytes of an LZ4 piece, expected a header of {_LZ4_HEADER.size}")
        magic, token, stored, length, _ = _LZ4_HEADER.unpack_from(data, at)
        method, longest = token & 0xF0, 1 << (10 + (token & 0x0F))
        start = at + _LZ4_HEADER.size
        if magic != _LZ4_MAGIC or method not in (_LZ4_RAW, _LZ4_PACKED) or length > longest or (method == _LZ4_RAW and stored != length):
            raise CorruptError(f"{source}: byte {offset + at}: expected the header of an LZ4 piece, found {bytes(data[at:start]).hex(' ')}")
        if stored > len(data) - start:
            raise TruncatedError(f"{source}: byte {offset + at}: an LZ4 piece of {stored} bytes, but the file has {len(data) - start} more")
        if not length:
            break
        if len(out) + length > nbytes:
            raise CorruptError(f"{source}: byte {offset + at}: LZ4 pieces give at least {len(out) + length} bytes, expected {nbytes}")
        piece = data[start : start + stored]
        try:
            plain = piece if method == _LZ4_RAW else lz4.block.decompress(piece, uncompressed_size=length)
        except lz4.block.LZ4BlockError as error:
            raise CorruptError(f"{source}: byte {offset + at}: an LZ4 piece of {stored} bytes cannot be decoded: {error}") from None
        if len(plain) != length:
            raise CorruptError(f"{source}: byte {offset + at}: an LZ4 piece gives {len(plain)} bytes, expected {length}")
        out += plain
        at = start + stored
    return bytes(out)


_DECODERS: dict[str, Callable[[memoryview, int, str, int], bytes | memoryview]] = {
    "raw": _raw, "gzip": _gzip, "zlib": _zlib, "bzip2": _bzip2, "xz": _xz, "lz4": _lz4, "zstd": _zstd, "blosc": _blosc,
}  # fmt: skip


def compress(data: bytes, compression: Compression, itemsize: int, source: str) -> bytes:
    """Compress a block.

    Parameters
    ----------
    data : bytes
        Its values.
    compression : Compression
        How; not lz4.
    itemsize : int
        Bytes of a value, for Blosc.
    source : str
        What is written, for errors.

    Returns
    -------
    bytes

    Raises
    ------
    ModuleNotFoundError
        A package is not installed.
    UnsupportedError
        It is lz4, which is read but not written.
    """
    kind = compression.stream
    if kind == "raw":
        return data
    if kind in ("gzip", "zlib"):
        level = int(compression.option("level", -1))
        return compress_gzip(data, 6 if level < 0 else level) if kind == "gzip" else zlib.compress(data, level)
    if kind == "bzip2":
        return bz2.compress(data, int(compression.option("blockSize", 9)))
    if kind == "xz":
        return lzma.compress(data, lzma.FORMAT_XZ, preset=int(compression.option("preset", 6)))
    if kind == "lz4":
        raise UnsupportedError(f"{source}: the lz4 of N5 is read but not written; blosc is as fast")
    codecs = need("imagecodecs", source, "zarr")
    if kind == "zstd":
        out: bytes = codecs.zstd_encode(data, int(compression.option("level", 3)) or 3)
        return out
    name, shuffle = compression.option("cname", "blosclz"), int(compression.option("shuffle", 1))
    shuffle = shuffle if shuffle >= 0 else 2 if itemsize == 1 else 1  # -1 leaves it to the writer, as in numcodecs
    packed: bytes = codecs.blosc_encode(
        data, int(compression.option("clevel", 5)), compressor=name, shuffle=shuffle, typesize=itemsize, blocksize=int(compression.option("blocksize", 0)),
        numthreads=1,
    )  # fmt: skip
    return packed


# ------------------------------------------------------------------------------------------------ Zarr


def zarr_codec(compression: Compression, itemsize: int, source: str) -> dict[str, Any] | None:
    """Say how Zarr v3 calls the codec of the same bytes.

    Parameters
    ----------
    compression : Compression
        How blocks are compressed.
    itemsize : int
        Bytes of a value.
    source : str
        The dataset, for errors.

    Returns
    -------
    dict or None
        None for blocks that are not compressed.

    Raises
    ------
    UnsupportedError
        Zarr has no such codec.
    """
    kind = compression.stream
    if kind == "raw":
        return None
    if kind == "lz4":
        raise UnsupportedError(f"{source}: Zarr has no codec for the lz4 of N5, which is the block stream of lz4-java; open it with wkwdask instead")
    level = _whole(compression.option("level"), -1)
    if kind == "gzip":
        return _codec("gzip", level=level if 0 <= level <= 9 else 6)
    if kind == "zlib":
        return _codec("numcodecs.zlib", level=level if 0 <= level <= 9 else 6)
    if kind == "bzip2":
        return _codec("numcodecs.bz2", level=_whole(compression.option("blockSize"), 9))
    if kind == "xz":
        return _codec("numcodecs.lzma", format=1, check=-1, preset=_whole(compression.option("preset"), 6), filters=None)
    if kind == "zstd":
        return _codec("zstd", level=max(level, 0), checksum=False)
    shuffle = _whole(compression.option("shuffle"), 1)
    shuffle = shuffle if 0 <= shuffle <= 2 else 2 if itemsize == 1 else 1
    name = compression.option("cname")
    return _codec(
        "blosc", typesize=itemsize, cname=name if name in _BLOSC_NAMES else "blosclz", clevel=_whole(compression.option("clevel"), 5),
        shuffle=_BLOSC_SHUFFLES[shuffle], blocksize=_whole(compression.option("blocksize"), 0),
    )  # fmt: skip


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def of_zarr_codec(codec: dict[str, Any]) -> Compression | None:
    """Say how N5 calls a Zarr v3 codec; None for one that N5 does not have.

    Examples
    --------
    >>> of_zarr_codec({"name": "gzip", "configuration": {"level": 5}}).to_json()
    {'type': 'gzip', 'level': 5, 'useZlib': False}
    """
    name = str(codec.get("name")).removeprefix("numcodecs.")
    given = codec.get("configuration") or {}
    if name in ("gzip", "zlib"):
        return Compression("gzip", (("level", given.get("level", 6)), ("useZlib", name == "zlib")))
    if name == "bz2":
        return Compression("bzip2", (("blockSize", given.get("level", 9)),))
    if name == "lzma":
        is_xz = given.get("format", 1) == 1 and not given.get("filters")
        return Compression("xz", (("preset", _whole(given.get("preset"), 6)),)) if is_xz else None
    if name == "zstd":
        return Compression("zstd", (("level", given.get("level", 0)),))
    if name == "blosc":
        shuffle = given.get("shuffle", "shuffle")
        number = _BLOSC_SHUFFLES.index(shuffle) if shuffle in _BLOSC_SHUFFLES else _whole(shuffle, 1)
        options = {"cname": given.get("cname", "blosclz"), "clevel": given.get("clevel", 5), "shuffle": number, "blocksize": given.get("blocksize", 0)}
        return Compression("blosc", tuple(options.items()))
    return None
