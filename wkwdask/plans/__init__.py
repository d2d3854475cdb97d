"""Integer arithmetic of volumes: the division of jobs, files and arrays into parts, and the mags of
a pyramid. Opens no file and runs no task.

A plan divides a mag into regions, and each region into bricks::

    mag      |          region          |          region          |     one task each, aligned to multiples of its shape
             |  brick | brick  | brick .|  brick | brick  | brick  |     the part that a task holds in memory at once, in Morton order
             |c|c|c|c |c|c|c|c |        |                          |     chunks (WKW blocks) of the target

All shapes are powers of two of units: of chunks, or of a few chunks for shards of, say, three chunks.
So regions, bricks and shards nest, unless such a unit is too large; then shards are joined from
parts. Start with ``regions`` (one mag), then ``pyramid`` (several mags from one read), ``upsample``, ``slabs`` (sections as
source) and ``apply``. ``cells`` marks the regions with data, ``chunks`` cuts dask arrays,
``mag_ladder`` lists mags, and ``batch_size`` sizes SLURM job arrays. May import ``geometry``,
``kernels`` and ``errors`` only.
"""  # noqa: E501
