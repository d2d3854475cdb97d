"""Build the coarser mags of one or all layers of a dataset, and print a report.

    python workflows/pyramid.py DATASET python workflows/pyramid.py DATASET --layer segmentation
    --coarsest 16-16-4 --cluster slurm-jobqueue

The same command resumes an interrupted run. Layers with finished coarser mags are skipped.
"""

from __future__ import annotations

import argparse

import wkwdask


def main() -> None:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="the dataset")
    parser.add_argument("--layer", help="one layer (default: all)")
    parser.add_argument("--coarsest", help="coarsest mag (default: as WEBKNOSSOS chooses)")
    parser.add_argument(
        "--method",
        default="default",
        help="downsampling method (default: median for color, mode for segmentation)",
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    options = parser.parse_args()
    layers = (
        [options.layer]
        if options.layer
        else [layer.name for layer in wkwdask.info(options.dataset).layers]
    )
    with wkwdask.cluster(options.cluster):
        print(
            wkwdask.build_pyramid(
                options.dataset,
                layers,
                coarsest=options.coarsest,
                method=options.method,
                existing="resume",
            )
        )


if __name__ == "__main__":  # worker processes import this file
    main()
