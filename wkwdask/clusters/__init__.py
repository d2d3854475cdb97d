"""Cluster configurations, dask clusters that are started from them, and a check that a cluster
works.

This folder may import all others except ``cli``, which imports it. It starts dask clusters but
defines no tasks.

Start with ``connect.cluster``, the public context manager. ``config`` finds, parses and checks
configuration files, ``jobqueue`` runs workers as jobs of a queueing system through dask-jobqueue
and replaces lost ones, and ``check`` probes a cluster with one worker.
"""
