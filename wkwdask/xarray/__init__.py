"""Volumes in xarray."""
