"""Pure arithmetic about volumes: how jobs, files and arrays are cut, and which mags a pyramid has. Opens no file and runs no task.

A plan cuts a mag twice::

    mag      |          region          |          region          |     one task each, aligned to multiples of its shape
             |  brick | brick  | brick .|  brick | brick  | brick  |     what a task holds in memory at once, in Morton order
             |c|c|c|c |c|c|c|c |        |                          |     chunks (WKW blocks) of the target

All shapes are powers of two of chunks, so regions, bricks and shards nest. Start with ``regions`` (one mag), then ``pyramid`` (several mags from one read),
``upsample``, ``slabs`` (sections as source) and ``apply``. ``cells`` marks the regions with data, ``chunks`` cuts dask arrays, ``mag_ladder`` lists mags, and
``batch_size`` sizes SLURM job arrays. May import ``geometry``, ``kernels`` and ``errors`` only.
"""
