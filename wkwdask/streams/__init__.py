"""Block streams: voxels of one mag in, voxels of coarser mags out, with a few bricks in memory. Opens nothing."""
