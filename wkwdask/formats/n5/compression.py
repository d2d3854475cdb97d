"""How the blocks of an N5 dataset are compressed, as ``attributes.json`` says it. Opens nothing.

Core are raw, gzip (or zlib), bzip2, xz and lz4 (N5 specification 4.0.0); blosc and zstd are extensions that Java, tensorstore and zarr know too. The lz4 of N5
is the block stream of lz4-java, which no Zarr codec reads; its checksums are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import UnsupportedError
from wkwdask.formats.n5.options import N5Options

if TYPE_CHECKING:
    from wkwdask.model.json_text import Problems

TYPES = ("raw", "gzip", "zlib", "bzip2", "xz", "lz4", "zstd", "blosc")
"""Compressions whose blocks are read; all but lz4 can be written."""


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
    """Choose a compression for blocks that are written."""
    level = N5Options(compression=name, level=level).level_of(name)
    if name == "zlib":
        return Compression("gzip", (("level", level), ("useZlib", True)))
    options: dict[str, Any] = {} if name == "raw" else {{"bzip2": "blockSize", "xz": "preset", "blosc": "clevel"}.get(name, "level"): level}
    if name == "gzip":
        options["useZlib"] = False
    if name == "blosc":
        options = {"cname": "zstd", **options, "shuffle": 1, "blocksize": 0}
    return Compression(name, tuple(options.items()))


def parse_compression(document: dict[str, Any], source: str, problems: Problems) -> Compression:
    """Read what ``attributes.json`` says of the compression; old files name it by ``compressionType``."""
    value = document.get("compression", {"type": document["compressionType"]} if "compressionType" in document else None)
    if isinstance(value, str):
        value = {"type": value}
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        problems.add("compression", 'an object with a "type"', value)
        return Compression()
    if value["type"] not in TYPES:
        raise UnsupportedError(f"{source}: compression {value['type']!r}, which is not read; known are {', '.join(TYPES)}")
    return Compression(value["type"], tuple((name, item) for name, item in value.items() if name != "type" and not isinstance(item, (dict, list))))
