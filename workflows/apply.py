"""Filter a layer and write the result as a new mag. Replace the mean filter of this example by your
own function.

    python workflows/apply.py DATASET/color/1 DATASET/smooth/1 --radius 2 python workflows/apply.py
    DATASET/color/1 DATASET/smooth/1 --radius 2 --pyramid --cluster slurm-jobqueue

The same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import os
from functools import partial

import numpy as np

import wkwdask


def smooth(voxels: np.ndarray, radius: int) -> np.ndarray:
    """Return the mean over a box, axis by axis; voxels beyond the border are ignored."""
    values = voxels.astype(np.float32)
    for axis in range(values.ndim):
        length = values.shape[axis]
        sums = np.concatenate(
            [np.zeros_like(values.take([0], axis)), values.cumsum(axis, dtype=np.float64)], axis
        )
        ends = np.minimum(np.arange(length) + radius + 1, length)
        starts = np.maximum(np.arange(length) - radius, 0)
        counts = (ends - starts).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
        values = (sums.take(ends, axis) - sums.take(starts, axis)) / counts
    return np.rint(values).astype(voxels.dtype)


def main() -> None:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a mag or a layer")
    parser.add_argument("target", help="the new mag, DATASET/LAYER/MAG")
    parser.add_argument(
        "--radius", type=int, default=1, help="extent of the box to each side [voxels] (default: 1)"
    )
    parser.add_argument("--pyramid", action="store_true", help="build the coarser mags too")
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        print(
            wkwdask.apply(
                partial(smooth, radius=options.radius),
                options.source,
                options.target,
                halo=options.radius,
                existing="resume",
            )
        )
        if options.pyramid:
            layer = os.path.dirname(os.path.abspath(options.target))
            print(
                wkwdask.build_pyramid(
                    os.path.dirname(layer), os.path.basename(layer), existing="resume"
                )
            )


if __name__ == "__main__":  # worker processes import this file
    main()
