"""zarr-python with the pipeline of codecs of zarrs, on the arrays of zarr_benchmarks."""

from __future__ import annotations

from . import public_peers

REQUIRES = ("zarr", "zarrs")


class Zarrs(public_peers.Zarr):
    """Slices of the array."""

    package = "zarrs"

    def start(self) -> None:
        """Use one thread."""
        import zarr
        import zarrs  # noqa: F401

        super().start()
        zarr.config.set(
            {
                "codec_pipeline.path": "zarrs.ZarrsCodecPipeline",
                "codec_pipeline.chunk_concurrent_maximum": 1,
            }
        )
