"""Access to bytes: local, shared, in-memory and remote files, zip archives, locks and SLURM.

Imports ``model``, ``plans``, ``kernels``, ``geometry`` and ``errors`` only, and never dask. Other
folders reach files through this one.

Start with ``store.open_store``, which returns a folder of files by path or URL, and ``files``, the
functions of ``os`` for paths. ``new_files`` publishes files atomically.
``locks`` serialises writers, and ``slurm`` reports whether the job of another writer has ended.
``records`` and ``json_record`` hold the small files that jobs keep beside the voxels.
"""
