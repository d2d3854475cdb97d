"""Set the contrast of all color layers of a dataset, and list slices that are much darker or
brighter than the others.

    python workflows/contrast.py DATASET
    python workflows/contrast.py DATASET --percentiles 0.5,99.5 --mag 4 --cluster slurm-jobqueue

The range of values is stored in datasource-properties.json, where WEBKNOSSOS reads it.
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
    parser.add_argument(
        "--percentiles",
        default="1,99",
        help="percentiles that become black and white (default: 1,99)",
    )
    parser.add_argument("--mag", help="mag to count; a coarser one is faster (default: the finest)")
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    options = parser.parse_args()
    low, high = map(float, options.percentiles.split(","))
    with wkwdask.cluster(options.cluster):
        for layer in wkwdask.info(options.dataset).layers:
            if layer.category == "color":
                table = wkwdask.contrast(
                    options.dataset,
                    (low, high),
                    layer=layer.name,
                    mag=options.mag,
                    per_slice=True,
                    write=True,
                )
                print(f"{layer.name}: {table.attrs['intensityRange']}")
                outside = (table.low - table.low.median()).abs() > 3 * table.low.std()
                print(table[outside].to_string() if outside.any() else "no outlier slices")


if __name__ == "__main__":  # worker processes import this file
    main()
