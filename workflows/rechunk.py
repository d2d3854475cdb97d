"""Store a dataset with larger files, so that a cluster's file system has fewer of them, and check that every voxel stayed.

    python workflows/rechunk.py DATASET TARGET --file-len 32
    python workflows/rechunk.py DATASET TARGET --file-len 32 --cluster slurm-jobqueue

Interrupted, the same command goes on. Mags of the target that are finished are left alone.
"""

from __future__ import annotations

import argparse

import wkwdask


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="what there is")
    parser.add_argument("target", help="the new dataset")
    parser.add_argument("--file-len", type=int, default=32, help="edge of a file in blocks (default 32)")
    parser.add_argument("--block-len", type=int, help="edge of a block in voxels (default: as it is)")
    parser.add_argument("--cluster", metavar="FILE|NAME", help="where it runs: wkwdask cluster list (default: the cores of this machine)")
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        report = wkwdask.rechunk(options.dataset, options.target, file_len=options.file_len, block_len=options.block_len, existing="resume", verify=True)
    print(report)


if __name__ == "__main__":  # processes of a pool import this file again
    main()
