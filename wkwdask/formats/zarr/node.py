"""A Zarr array or group as its documents describe it, in version 2 or 3. No chunk is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wkwdask.errors import CorruptError
from wkwdask.model.json_text import parse_object
from wkwdask.model.parsing import reading
from wkwdask.store.store import open_store, trusting

if TYPE_CHECKING:
    from wkwdask.model.store import Store

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_LARGEST_DOCUMENT = 64 << 20
_NAMES = ("dimension_names", "_ARRAY_DIMENSIONS")  # of version 3, of xarray


@dataclass(frozen=True, slots=True)
class Node:
    """An array or a group."""

    store: Store
    """Its folder."""
    record: str
    """The file that describes it."""
    document: dict[str, Any]
    """What that says."""
    attributes: dict[str, Any]
    """Its attributes."""
    listed: tuple[str, ...]
    """Members of a group by consolidated metadata."""

    @property
    def is_array(self) -> bool:
        """Whether it is an array."""
        return self.record == ".zarray" or self.document.get("node_type") == "array"

    @property
    def path(self) -> str:
        """Path or URL of the file that describes it."""
        return self.store.path_of(self.record)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the array."""
        with reading(self.path, "Zarr array or group"):
            shape = self.document["shape"]
            if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
                raise CorruptError(f"{self.path}: shape: expected lengths, found {shape!r}")
            return tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Type of its values, None where they are no numbers."""
        said = self.document.get("dtype" if self.record == ".zarray" else "data_type")
        try:
            return np.dtype(said) if isinstance(said, str) else None
        except TypeError:
            return None

    @property
    def said_dtype(self) -> str:
        """What the document calls the type of its values."""
        said = self.document.get("dtype" if self.record == ".zarray" else "data_type")
        return str(said.get("name", said) if isinstance(said, dict) else said)

    @property
    def names(self) -> list[str] | None:
        """The names of its axes: ``dimension_names`` of version 3, ``_ARRAY_DIMENSIONS`` of xarray."""
        names = self.document.get(_NAMES[0]) or self.attributes.get(_NAMES[1])
        return list(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None

    def member(self, key: str) -> Node | None:
        """Read what a group holds by a name, None where there is nothing."""
        if key.startswith("/") or ".." in key.split("/"):
            raise CorruptError(f"{self.store.url}: expected a path inside of the group, found {key!r}")
        return read_node(self.store.path_of(key))


def read_node(location: str) -> Node | None:
    """Read an array or group, None where there is none."""
    store = open_store(location)
    (first,) = store.read_whole(_DOCUMENTS[:1], _LARGEST_DOCUMENT)
    if first is not None:
        document = _parsed(first, store, "zarr.json")
        if document.get("zarr_format") != 3 or document.get("node_type") not in ("array", "group"):
            what = f"zarr_format {document.get('zarr_format')!r}, node_type {document.get('node_type')!r}"
            raise CorruptError(f"{store.path_of('zarr.json')}: not readable as Zarr array or group: expected an array or a group of version 3, found {what}")
        inside = (document.get("consolidated_metadata") or {}).get("metadata")
        return Node(trusting(store, "zarr.json"), "zarr.json", document, _object(document.get("attributes"), store, "zarr.json"), _members(inside))
    for record, raw in zip(_DOCUMENTS[1:3], store.read_whole(_DOCUMENTS[1:3], _LARGEST_DOCUMENT), strict=True):
        if raw is not None:
            trusted = trusting(store, record)
            attributes, listing = trusted.read_whole(_DOCUMENTS[3:], _LARGEST_DOCUMENT)
            listed = {} if listing is None else _parsed(listing, store, ".zmetadata").get("metadata")
            names = [name.rpartition("/")[0] for name in listed] if isinstance(listed, dict) else []
            found = {} if attributes is None else _parsed(attributes, store, ".zattrs")
            return Node(trusted, record, _parsed(raw, store, record), found, _members(dict.fromkeys(names)))
    return None


def _parsed(raw: bytes, store: Store, name: str) -> dict[str, Any]:
    try:
        return parse_object(raw, store.path_of(name))
    except CorruptError as error:
        raise CorruptError(f"{store.url}: not readable as Zarr array or group: {error}") from None


def _object(value: Any, store: Store, name: str) -> dict[str, Any]:
    if not isinstance(value, (dict, type(None))):
        raise CorruptError(f"{store.path_of(name)}: attributes: expected an object, found {type(value).__name__}")
    return value or {}


def _members(found: Any) -> tuple[str, ...]:
    """Take the names right in a group."""
    return tuple(sorted(name for name in found if name and "/" not in name)) if isinstance(found, dict) else ()
