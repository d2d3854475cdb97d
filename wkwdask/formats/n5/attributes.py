"""``attributes.json`` of an N5 dataset: text in, records out. Opens nothing.

An N5 group is any folder, and a dataset a group whose attributes have ``dimensions``; all lengths are listed with the fastest axis first, which is x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wkwdask.errors import CorruptError, UnsupportedError
from wkwdask.formats.n5.compression import Compression, parse_compression
from wkwdask.model.json_text import Problems

FILE_NAME = "attributes.json"
VERSION = "4.0.0"
DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64")
LARGEST_BLOCK = 1 << 31
"""Bytes of values that a block has at most (N5 specification 4.0.0, rule 7)."""
OWN = ("n5", "dimensions", "blockSize", "dataType", "compression", "compressionType")
"""Attributes that say how a dataset is stored."""
_LARGEST = 1 << 53
_MOST_AXES = 32


@dataclass(frozen=True, slots=True)
class N5Dataset:
    """How a dataset is stored."""

    dimensions: tuple[int, ...]
    """Its lengths, x first."""
    block_size: tuple[int, ...]
    """Lengths of a block, which those at the upper ends may fall short of."""
    dtype: np.dtype[Any]
    """Type of its values, in native byte order."""
    compression: Compression
    """How blocks are compressed."""
    document: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """All that the JSON says."""

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks along each axis."""
        return tuple(-(-n // edge) for n, edge in zip(self.dimensions, self.block_size, strict=True))

    @property
    def block_nbytes(self) -> int:
        """Bytes of a whole block's values."""
        return math.prod(self.block_size) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """Give what ``attributes.json`` says of it."""
        lengths = {"dimensions": list(self.dimensions), "blockSize": list(self.block_size)}
        return {**lengths, "dataType": self.dtype.name, "compression": self.compression.to_json()}


def is_dataset(document: dict[str, Any]) -> bool:
    """Tell whether attributes are those of a dataset."""
    return "dimensions" in document and "blockSize" in document


def parse_dataset(document: dict[str, Any], source: str) -> N5Dataset:
    """Read the attributes of a dataset."""
    problems = Problems()
    dimensions = _lengths(document.get("dimensions"), "dimensions", 0, problems)
    block_size = _lengths(document.get("blockSize"), "blockSize", 1, problems)
    if dimensions and block_size and len(dimensions) != len(block_size):
        problems.add("blockSize", f"{len(dimensions)} numbers, as many as there are dimensions", list(block_size))
    name = document.get("dataType")
    if name in ("object", "string"):
        raise UnsupportedError(f"{source}: dataType: holds {name}s, expected numbers: {', '.join(DTYPES)}")
    if name not in DTYPES:
        problems.add("dataType", f"one of {', '.join(DTYPES)}", name)
    compression = parse_compression(document, source, problems)
    dtype = np.dtype(name if name in DTYPES else "uint8")
    if block_size and math.prod(block_size) * dtype.itemsize > LARGEST_BLOCK:
        problems.add("blockSize", f"blocks of at most {LARGEST_BLOCK} bytes", list(block_size))
    if problems.found:
        raise CorruptError(f"{source}: " + "; ".join(problems.found))
    if document.get("isLabelMultiset") is True:
        raise UnsupportedError(f"{source}: isLabelMultiset: holds several labels for each voxel, which is not read")
    return N5Dataset(dimensions, block_size, dtype, compression, document)


def _lengths(value: Any, path: str, least: int, problems: Problems) -> tuple[int, ...]:
    if isinstance(value, list) and 1 <= len(value) <= _MOST_AXES and all(is_whole(item) and least <= item <= _LARGEST for item in value):
        return tuple(int(item) for item in value)
    problems.add(path, f"1..{_MOST_AXES} whole numbers of {least} to 2^53", value)
    return ()


def is_whole(value: Any) -> bool:
    """Tell whether a value of a JSON is a whole number; one written as 64.0 is."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value) and value == int(value))
