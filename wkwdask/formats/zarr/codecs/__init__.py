"""Plugins of zarr-python: chunks that are WKW, N5 or TIFF files.

- ``wkw`` and ``wkw_keys``: a chunk is a WKW data file; ``n5_default``: a chunk is an N5 block.
- ``offset`` and ``pad``: a header or footer around each chunk, from the functions of ``headers``;
  ``tiff`` makes TIFF headers.
- ``tiff_shard``: a standard Zarr shard that is also a TIFF file.
- ``bounded``: bounded compressors for arrays that zarr-python reads.

zarr-python loads a module by its entry point (``pyproject.toml``) when a ``zarr.json`` names its
codec. All modules but ``headers`` and ``tiff`` import zarr. Start with ``offset``, the smallest
complete codec.
"""
