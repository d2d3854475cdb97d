"""Make the coarser mags of all layers of a dataset, or of one, and say what that took.

    python workflows/pyramid.py DATASET
    python workflows/pyramid.py DATASET --layer segmentation --coarsest 16-16-4 --cluster slurm-jobqueue

Interrupted, the same command goes on. Layers that have their coarser mags already are left alone.
"""

from __future__ import annotations

import argparse

import wkwdask


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="the dataset")
    parser.add_argument("--layer", help="one layer (default: all)")
    parser.add_argument("--coarsest", help="the coarsest mag (default: as WEBKNOSSOS has it)")
    parser.add_argument("--method", default="default", help="how voxels are joined (default: median for color, mode for segmentations)")
    parser.add_argument("--cluster", metavar="FILE|NAME", help="where it runs: wkwdask cluster list (default: the cores of this machine)")
    options = parser.parse_args()
    layers = [options.layer] if options.layer else [layer.name for layer in wkwdask.info(options.dataset).layers]
    with wkwdask.cluster(options.cluster):
        print(wkwdask.build_pyramid(options.dataset, layers, coarsest=options.coarsest, method=options.method, existing="resume"))


if __name__ == "__main__":  # processes of a pool import this file again
    main()
