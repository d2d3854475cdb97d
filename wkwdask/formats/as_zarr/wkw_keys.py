"""Zarr v3 chunk key encoding ``wkw``: chunks have the file names of a WKW mag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from zarr.core.chunk_key_encodings import ChunkKeyEncoding

from wkwdask.errors import CorruptError

_KEY = re.compile(r"z(\d+)/y(\d+)/x(\d+)\.wkw", re.ASCII)


@dataclass(frozen=True)
class WkwChunkKeyEncoding(ChunkKeyEncoding):  # type: ignore[misc, unused-ignore]
    """Keys ``z{z}/y{y}/x{x}.wkw`` for arrays with the axes z, y, x or c, z, y, x, with all channels
    in one chunk."""

    name: ClassVar[str] = "wkw"

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name}

    def encode_chunk_key(self, chunk_coords: tuple[int, ...]) -> str:
        """Return the key of a chunk.

        Examples
        --------
        >>> WkwChunkKeyEncoding().encode_chunk_key((2, 1, 0))
        'z2/y1/x0.wkw'
        """
        if len(chunk_coords) not in (3, 4) or any(chunk_coords[:-3]):
            raise ValueError(
                "chunk key encoding wkw: expected chunk numbers along z, y, x, with all channels "
                f"in one chunk, got {chunk_coords}"
            )
        z, y, x = chunk_coords[-3:]
        return f"z{z}/y{y}/x{x}.wkw"

    def decode_chunk_key(self, chunk_key: str) -> tuple[int, ...]:
        match = _KEY.fullmatch(chunk_key)
        if match is None:
            raise CorruptError(f"{chunk_key}: expected a key such as z2/y1/x0.wkw")
        z, y, x = map(int, match.groups())
        return z, y, x
