"""Clusters: configurations, dask clusters started from them, and a check that a cluster works.

A top-level folder: imports any other one, and is imported by the command line. It starts dask clusters but defines no tasks.

Start with ``connect.cluster``, the public context manager. ``config`` finds, parses and checks configuration files, ``jobqueue`` runs workers as jobs of a
queueing system through dask-jobqueue and replaces lost ones, and ``check`` probes a cluster with one worker.
"""
