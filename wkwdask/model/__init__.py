"""Volumes of any format: stored arrays, images with several mags, and targets of writes. Opens no
file: all bytes come from the stores passed in.

May import ``errors``, ``geometry``, ``kernels`` and ``plans``; knows neither a format nor dask.

Start with ``volume`` (:class:`~wkwdask.model.volume.Volume`, which jobs read) and ``stored_array``
(one implementation for all formats: ``store`` for bytes, ``chunk_grid`` for boxes, ``naming`` for
names of files, ``layout`` for chunks in files, ``codec`` for bytes of a chunk). ``image`` groups
levels into images. ``writing`` has the counterparts for writing. The protocols and base classes
here are what the author of another format implements.
"""
