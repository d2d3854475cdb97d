"""Zarr v3 codec ``pad``: bytes of fixed length at either end of each chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wkwdask.errors import CorruptError
from wkwdask.formats.zarr.codecs.offset import FixedBytesCodec


@dataclass(frozen=True, kw_only=True)
class PadCodec(FixedBytesCodec):
    """Add ``nbytes`` bytes before or after each chunk, and skip them on reading; two of them make a
    header and a footer."""

    # zarr-extensions, proposal codecs/pad, version 0.1.0 (commit 6ca3baa)
    name: ClassVar[str] = "pad"
    size_key: ClassVar[str] = "nbytes"
    literal_key: ClassVar[str] = "padding"
    more_keys: ClassVar[tuple[str, ...]] = ("location",)

    location: str
    """``"start"`` or ``"end"``."""

    def __post_init__(self) -> None:
        if self.location not in ("start", "end"):
            raise CorruptError(
                f"codec 'pad': 'location' is {self.location!r}, expected 'start' or 'end'"
            )
        super().__post_init__()

    @property
    def at_start(self) -> bool:
        return self.location == "start"
