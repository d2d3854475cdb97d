"""Neuroglancer precomputed volumes: bytes and JSON to arrays and records. Opens nothing."""
