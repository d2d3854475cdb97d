"""Measure all labels of a segmentation: size, bounding box, centroid, and the mean of a color layer
inside each label.

    python workflows/label_statistics.py DATASET table.csv --layer segmentation --color color
    python workflows/label_statistics.py DATASET table.parquet --cluster slurm-jobqueue

Voxels are streamed: memory grows with the number of labels, not with the volume.
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
    parser.add_argument("table", help="table to write: .csv or .parquet")
    parser.add_argument("--layer", help="layer with the labels (default: the only segmentation)")
    parser.add_argument("--mag", help="mag of the labels (default: the finest)")
    parser.add_argument("--color", help="layer to average inside each label")
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        table = wkwdask.label_statistics(
            options.dataset,
            options.color,
            layer=options.layer,
            mag=options.mag,
            output=options.table,
        )
    print(f"{len(table)} labels; the largest are")
    print(table.nlargest(5, "voxels").T.to_string())


if __name__ == "__main__":  # worker processes import this file
    main()
