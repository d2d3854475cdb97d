"""Label the connected components of a layer, leave out the small ones, and make the coarser mags of the new segmentation.

    python workflows/connected_components.py DATASET/color/1 DATASET/cells/1 --threshold 180 --min-voxels 100
    python workflows/connected_components.py DATASET/segmentation/1 DATASET/split/1 --cluster slurm-jobqueue

Without a threshold, neighbours with the same label are joined. Interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
import os

import wkwdask


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a mag or a layer")
    parser.add_argument("target", help="the new mag, DATASET/LAYER/MAG")
    parser.add_argument("--threshold", type=_number, help="voxels count that are at least this (default: equal labels are joined)")
    parser.add_argument("--connectivity", type=int, choices=(6, 18, 26), default=26, help="neighbours of a voxel (default 26)")
    parser.add_argument("--min-voxels", type=int, default=0, help="smaller components become 0")
    parser.add_argument("--pyramid", action="store_true", help="make the coarser mags too")
    parser.add_argument("--cluster", metavar="FILE|NAME", help="where it runs: wkwdask cluster list (default: the cores of this machine)")
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        report = wkwdask.connected_components(
            options.source, options.target, threshold=options.threshold, connectivity=options.connectivity, min_voxels=options.min_voxels, existing="resume"
        )
        print(report)
        if options.pyramid:
            layer = os.path.dirname(os.path.abspath(options.target))
            print(wkwdask.build_pyramid(os.path.dirname(layer), os.path.basename(layer), existing="resume"))


def _number(text: str) -> float:
    """Read a number; a float cannot tell ids beyond 2^53 apart."""
    try:
        return int(text)
    except ValueError:
        return float(text)


if __name__ == "__main__":  # processes of a pool import this file again
    main()
