"""Codecs for zarr-python 3: bytes around chunks, TIFF headers. Opens nothing.

Modules that define a codec import zarr, and are imported by zarr itself (entry points) or where somebody asks for a codec; all others do without it.
"""
