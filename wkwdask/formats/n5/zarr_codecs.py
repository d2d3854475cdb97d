"""What Zarr v3 calls the compressions of N5, and N5 those of Zarr. Opens nothing."""

from __future__ import annotations

from typing import Any

from wkwdask.errors import UnsupportedError
from wkwdask.formats.n5.compression import Compression

_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def zarr_codec(compression: Compression, itemsize: int, source: str) -> dict[str, Any] | None:
    """Say how Zarr v3 calls the codec of the same bytes."""
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
