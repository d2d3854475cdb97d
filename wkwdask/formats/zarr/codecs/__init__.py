"""Codecs of zarr-python: WKW, N5 and TIFF files as shards of Zarr."""
