"""Integer geometry: boxes, mags, grids, Morton codes.

Imports numpy and nothing else of this package; opens no file. Coordinates are (x, y, z) tuples of
Python integers.

Start with ``bounding_box`` (a box of voxels of one mag) and ``mag`` (one resolution step). ``grid``
maps boxes to cells of a regular grid, ``morton`` and ``compressed_morton`` number those cells as
WKW files and sharded precomputed volumes do, ``vectors`` adds and multiplies triples.
"""
