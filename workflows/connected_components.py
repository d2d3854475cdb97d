"""Label the connected components of a layer, drop small ones, and build the coarser mags of the new
segmentation.

    python workflows/connected_components.py DATASET/color/1 DATASET/cells/1 --threshold 180
    --min-voxels 100 python workflows/connected_components.py DATASET/segmentation/1 DATASET/split/1
    --cluster slurm-jobqueue

Without a threshold, neighbors with the same label are joined. The same command resumes an
interrupted run.
"""

from __future__ import annotations

import argparse
import os

import wkwdask


def main() -> None:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="a mag or a layer")
    parser.add_argument("target", help="the new mag, DATASET/LAYER/MAG")
    parser.add_argument(
        "--threshold",
        type=_number,
        help="join voxels with at least this value (default: join equal labels)",
    )
    parser.add_argument(
        "--connectivity",
        type=int,
        choices=(6, 18, 26),
        default=26,
        help="neighbors of a voxel (default: 26)",
    )
    parser.add_argument(
        "--min-voxels",
        type=int,
        default=0,
        help="minimum size of a component; smaller ones become 0",
    )
    parser.add_argument("--pyramid", action="store_true", help="build the coarser mags too")
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        report = wkwdask.connected_components(
            options.source,
            options.target,
            threshold=options.threshold,
            connectivity=options.connectivity,
            min_voxels=options.min_voxels,
            existing="resume",
        )
        print(report)
        if options.pyramid:
            layer = os.path.dirname(os.path.abspath(options.target))
            print(
                wkwdask.build_pyramid(
                    os.path.dirname(layer), os.path.basename(layer), existing="resume"
                )
            )


def _number(text: str) -> float:
    """Parse a number; float cannot represent all ids above 2^53."""
    try:
        return int(text)
    except ValueError:
        return float(text)


if __name__ == "__main__":  # worker processes import this file
    main()
