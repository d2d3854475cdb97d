"""Store a dataset with fewer, larger files, which suits the file systems of clusters, and compare
all voxels.

    python workflows/rechunk.py DATASET TARGET --file-len 32
    python workflows/rechunk.py DATASET TARGET --file-len 32 --cluster slurm-jobqueue

The same command resumes an interrupted run. Finished mags of the target are skipped.
"""

from __future__ import annotations

import argparse

import wkwdask


def main() -> None:
    """Run the workflow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="existing dataset")
    parser.add_argument("target", help="the new dataset")
    parser.add_argument(
        "--file-len", type=int, default=32, help="edge of a file in blocks (default: 32)"
    )
    parser.add_argument(
        "--block-len", type=int, help="edge of a block in voxels (default: unchanged)"
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        report = wkwdask.rechunk(
            options.dataset,
            options.target,
            file_len=options.file_len,
            block_len=options.block_len,
            existing="resume",
            verify=True,
        )
    print(report)


if __name__ == "__main__":  # worker processes import this file
    main()
