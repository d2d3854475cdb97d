"""Dask: arrays over volumes, sinks for arrays, runners for jobs. Knows volumes by their protocols, no format."""
