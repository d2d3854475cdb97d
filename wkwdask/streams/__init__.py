"""Streams of voxels with bounded memory: bricks of one mag in, bricks of coarser or finer mags out.
Opens no file and runs no task.

- ``pyramid``: all coarser mags of a region from one read of its bricks; start here
- ``upsample``: the bricks of a finer mag
- ``points``: the values of a volume at many points
- ``converted``: a volume with other channels or another data type

The caller reads the source and writes the bricks. May import ``plans``, ``model`` and the folders
below them.
"""
