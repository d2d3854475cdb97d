"""The checksum CRC-32C, as the codec ``crc32c`` writes it."""

from __future__ import annotations

from functools import cache
from typing import Any

from wkwdask.model.extras import need

CHECKSUM_NBYTES = 4


def checksum(data: bytes) -> bytes:
    """Return the CRC-32C of some bytes."""
    return int(_crc32c()(data)).to_bytes(CHECKSUM_NBYTES, "little")


@cache
def _crc32c() -> Any:
    """Find a library; which one comes with zarr depends on its version."""
    try:
        return need("google_crc32c", "the index of a Zarr shard", "zarr").value
    except ModuleNotFoundError:
        return need("crc32c", "the index of a Zarr shard", "zarr").crc32c
