"""Apply a mapping to a segmentation, remove small segments, and renumber the others from 1.

    python workflows/remap.py DATASET/segmentation/1 DATASET/merged/1 merges.csv python
    workflows/remap.py DATASET/segmentation/1 DATASET/neurons/1 agglomerates/view_70.hdf5 --dtype
    uint64 --min-voxels 1000 python workflows/remap.py DATASET/segmentation/1 DATASET/proofread/1
    merger_mode.nml --cluster slurm-jobqueue

With --min-voxels, the layers DATASET/LAYER-clean and DATASET/LAYER-compact are written beside the
target, and ids.csv in the current folder lists the final ids. The same command resumes an
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
    parser.add_argument("mapping", help=".csv, .parquet, .npy, .hdf5 or .nml")
    parser.add_argument(
        "--default",
        choices=("keep", "zero"),
        default="keep",
        help="keep ids that are not in the mapping, or set them to zero (default: keep)",
    )
    parser.add_argument("--dtype", help="data type of the new ids (default: that of the source)")
    parser.add_argument(
        "--min-voxels", type=int, help="remove smaller segments, and renumber the others from 1"
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        print(
            wkwdask.remap(
                options.source,
                options.target,
                options.mapping,
                default=options.default,
                dtype=options.dtype,
                existing="resume",
            )
        )
        if options.min_voxels is not None:
            layer, mag = os.path.split(os.path.abspath(options.target))
            print(
                wkwdask.remove_dust(
                    options.target, f"{layer}-clean/{mag}", options.min_voxels, existing="resume"
                )
            )
            print(
                wkwdask.renumber(
                    f"{layer}-clean/{mag}",
                    f"{layer}-compact/{mag}",
                    mapping="ids.csv",
                    existing="resume",
                )
            )


if __name__ == "__main__":  # worker processes import this file
    main()
