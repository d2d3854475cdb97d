"""Jobs on segment ids: connected components, mappings of ids, label statistics and histograms.

``find_components`` plans connected components; ``components`` has their jobs and ``faces`` their
scratch files. ``remap_layer`` plans a mapping of ids; ``id_source`` reads the user's mappings and
``id_map`` stores them as tables. ``survey`` is the job that gathers facts about a volume, with the
surveys in ``label_statistics`` and ``histogram``.

This folder imports ``verbs`` and everything below it, never dask and never ``api``. Start with
``survey`` (short) or with ``components`` (the algorithm).
"""
