"""Formats of volumes: stored bytes to arrays, documents to records, and back.

Each subfolder is one format: ``wkw`` (files of WEBKNOSSOS mags), ``webknossos`` (datasets of such
layers), ``precomputed``, ``n5``, ``zarr``, and ``pictures`` (image stacks and arrays in single
files, for import and export only). The modules beside them hold what the formats share.

May import ``errors``, ``geometry``, ``kernels``, ``plans``, ``model``, ``streams`` and ``store``;
knows no dask, and reaches files through ``store`` only.

Start with ``format`` (:class:`~wkwdask.formats.format.ArrayFormat`, what a format provides) and
``registry`` (the list of formats). ``opening`` resolves the path or URL that a user names.
Verify and repair are ``inspection`` (levels, their folders and records), ``array_check`` (a file),
``array_repair`` and ``repair``; ``publication`` and ``record_paths`` read and write the records by
which jobs publish levels.
"""
