"""zarr-python with the pipeline of codecs of zarrs."""

from __future__ import annotations

from . import zarr_parts

REQUIRES = ("zarr", "zarrs")


class Opened(zarr_parts.Opened):
    """``array[...]``."""

    package = "zarrs"

    def open(self) -> None:
        """Open the array."""
        import zarr
        import zarrs  # noqa: F401

        zarr.config.set(
            {
                "codec_pipeline.path": "zarrs.ZarrsCodecPipeline",
                "codec_pipeline.chunk_concurrent_maximum": 1,
            }
        )
        super().open()
