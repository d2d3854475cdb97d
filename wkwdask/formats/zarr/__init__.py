"""Zarr v2 and v3 with OME-NGFF."""
