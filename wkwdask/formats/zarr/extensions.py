"""Check of documents of Zarr v3 for metadata that a reader must understand. Does no I/O.

Zarr v3, "Extension points": a reader must fail for an unknown member of a document, unless it is an
object with ``"must_understand": false``. The objects of extensions have a name and a configuration.
A configuration of a known extension has no other settings than its specification lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_GROUP = frozenset({"zarr_format", "node_type", "attributes", "consolidated_metadata"})
_ARRAY = _GROUP | {
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "storage_transformers",
    "dimension_names",
}
_EXTENSION = frozenset({"name", "configuration", "must_understand"})
_SETTINGS: dict[str, frozenset[str]] = {
    "regular": frozenset({"chunk_shape"}),
    "default": frozenset({"separator"}),
    "v2": frozenset({"separator"}),
    "bytes": frozenset({"endian"}),
    "transpose": frozenset({"order"}),
    "blosc": frozenset({"cname", "clevel", "shuffle", "typesize", "blocksize"}),
    "gzip": frozenset({"level"}),
    "zstd": frozenset({"level", "checksum"}),
    "crc32c": frozenset(),
    "sharding_indexed": frozenset({"chunk_shape", "codecs", "index_codecs", "index_location"}),
}
"""Settings of the extensions in the specification, by the name of the extension."""


def check_members(document: Mapping[str, Any], path: str) -> None:
    """Raise UnsupportedError for an unknown member of the ``zarr.json`` at a path that a reader
    must understand."""
    node = str(document.get("node_type"))
    for name, value in document.items():
        is_optional = isinstance(value, dict) and value.get("must_understand") is False
        if name not in (_ARRAY if node == "array" else _GROUP) and not is_optional:
            text = (
                f'without "must_understand": false, so this {node} must not be read (Zarr v3, '
                '"Extension points")'
            )
            raise UnsupportedError(f"{path}: unknown member {name!r} {text}")


def check_extensions(document: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for another chunk grid, storage transformers, and unknown settings of
    the grid, the names of chunks and the codecs."""
    grid = document.get("chunk_grid")
    if isinstance(grid, dict) and grid.get("name") != "regular":
        raise UnsupportedError(
            f"chunk_grid: {grid.get('name')!r} is not supported, expected 'regular'; write the "
            "array again with chunks of one size"
        )
    if document.get("storage_transformers"):
        raise UnsupportedError("storage_transformers are not supported")
    for place, extension in _extensions(document):
        name, settings = extension.get("name"), extension.get("configuration")
        unknown = sorted(extension.keys() - _EXTENSION)
        if name in _SETTINGS and isinstance(settings, dict):
            unknown += sorted(settings.keys() - _SETTINGS[name])
        if unknown:
            raise UnsupportedError(
                f"{place}: {name!r} has the unknown setting {unknown[0]!r}, so the array must not "
                "be read"
            )


def _extensions(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place and the object of each extension, also of codecs inside shards."""
    for place in ("chunk_grid", "chunk_key_encoding"):
        if isinstance(document.get(place), dict):
            yield place, document[place]
    yield from _codecs("codecs", document.get("codecs"))


def _codecs(place: str, codecs: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, codec in enumerate(codecs if isinstance(codecs, list) else ()):
        if isinstance(codec, dict):
            yield f"{place}[{number}]", codec
            settings = codec.get("configuration")
            if isinstance(settings, dict):
                for name in ("codecs", "index_codecs"):
                    yield from _codecs(f"{place}[{number}].{name}", settings.get(name))
