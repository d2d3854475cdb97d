"""Storage options of images and arrays in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wkwdask.model.options import StorageOptions, choice


@dataclass(frozen=True, slots=True)
class TiffOptions(StorageOptions):
    name: ClassVar[str] = "an export"
    title: ClassVar[str] = "TIFF"

    compression: str | None = choice(
        "Compression of TIFF files; .npy and .zarr targets have no such option.",
        ("zlib", "lzw", "zstd", "raw"),
        "zlib",
    )
