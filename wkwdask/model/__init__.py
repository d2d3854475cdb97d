"""Volumes independent of their format: what a stored array, an image and a target are. Opens no file: bytes come from the stores that it is given.

May import ``errors``, ``geometry``, ``kernels`` and ``plans``; knows neither a format nor dask.

Start with ``volume`` (:class:`~wkwdask.model.volume.Volume`, what jobs read) and ``stored_array`` (the one implementation for all formats: ``store`` for bytes,
``chunk_grid`` for boxes, ``naming`` for names of files, ``layout`` for chunks in files, ``codec`` for bytes of a chunk). ``image`` groups levels into images.
``target_image`` and ``target_array`` are the counterparts for writing: parts of shards (``run``, ``file_buffer``) are joined into shards and reported by
``receipts``. The protocols and base classes here are what the author of another format implements.
"""
