"""Neuroglancer precomputed volumes, as the documents in ``datasource/precomputed`` of the
neuroglancer repository specify them.

Start with ``info`` (the JSON of a volume and its scales) and ``array`` (one scale as a stored
array). From bytes to voxels: ``sharding`` and ``layouts`` (chunks in files), ``chunk`` (encodings),
``compressed_segmentation``, ``compresso``, ``images``, ``compressed_streams``.

``layer`` opens volumes, ``target`` and ``info_file`` write them, ``writable`` rejects what other
readers cannot read, ``inspection`` verifies files, and ``format`` joins all of it for
:mod:`wkwdask.formats.registry`.

Modules import ``store``, ``model``, ``geometry``, ``kernels`` and ``plans``, never dask. They reach
files through ``store`` alone.
"""
