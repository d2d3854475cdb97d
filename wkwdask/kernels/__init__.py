"""Compiled inner loops over numpy arrays, which run without the GIL.

- ``blocks``: locate, read, decode and encode many WKW blocks in one call
- ``window``: reduce windows of voxels for pyramids, and repeat voxels for upsampling
- ``labels``: connected components, statistics of labels, maps of ids
- ``codecs``: inner loops of compressed segmentation and Compresso
- ``arrays``: extremes, zeros, hashes, copies between memory orders

Modules ``*_compiled`` hold the numba loops. They are imported on the first call of a public
function, so importing the package compiles nothing. ``compiler`` compiles them and keeps their
machine code. This folder imports no other folder of the package. Start with ``blocks/batch.py``.
"""
