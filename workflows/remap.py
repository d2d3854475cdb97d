"""Apply a mapping to a segmentation, then remove what is small and number what is left from 1.

    python workflows/remap.py DATASET/segmentation/1 DATASET/merged/1 merges.csv
    python workflows/remap.py DATASET/segmentation/1 DATASET/neurons/1 agglomerates/view_70.hdf5 --dtype uint64 --min-voxels 1000
    python workflows/remap.py DATASET/segmentation/1 DATASET/proofread/1 merger_mode.nml --cluster slurm-jobqueue

Where small segments are removed, the layers DATASET/LAYER-clean and DATASET/LAYER-compact come beside the target, and ids.csv in the current folder tells the
last ids. Interrupted, the same command goes on.
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
    parser.add_argument("mapping", help=".csv, .parquet, .npy, .hdf5 or .nml")
    parser.add_argument("--default", choices=("keep", "zero"), default="keep", help="what becomes of ids that the mapping does not name (default keep)")
    parser.add_argument("--dtype", help="type of the new ids (default: as in the source)")
    parser.add_argument("--min-voxels", type=int, help="remove smaller segments, and number the rest from 1")
    parser.add_argument("--cluster", metavar="FILE|NAME", help="where it runs: wkwdask cluster list (default: the cores of this machine)")
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        print(wkwdask.remap(options.source, options.target, options.mapping, default=options.default, dtype=options.dtype, existing="resume"))
        if options.min_voxels is not None:
            layer, mag = os.path.split(os.path.abspath(options.target))
            print(wkwdask.remove_dust(options.target, f"{layer}-clean/{mag}", options.min_voxels, existing="resume"))
            print(wkwdask.renumber(f"{layer}-clean/{mag}", f"{layer}-compact/{mag}", mapping="ids.csv", existing="resume"))


if __name__ == "__main__":  # processes of a pool import this file again
    main()
