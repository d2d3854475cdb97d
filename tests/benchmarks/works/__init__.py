"""Measured works, one module per tool; each is imported only in the process that measures it.

A work has ``nbytes`` (decoded source bytes of one run), ``prepare()`` (not timed, before each run),
``run()`` (timed; returns None, or CPU seconds of named parts that it timed itself), ``written()``
(bytes of the files it made), ``digests()`` (hash of the voxels of each result) and ``version()``. A
module's ``REQUIRES`` names the packages without which its tool is "not installed".
"""
