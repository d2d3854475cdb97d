"""Stored bytes to arrays and JSON to records, and back. Opens nothing, knows no dask."""
