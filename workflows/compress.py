"""Compress all mags of a dataset that are raw, in their place, and say what that saves.

    python workflows/compress.py DATASET
    python workflows/compress.py DATASET --level 9 --cluster slurm-jobqueue

A mag is replaced when all voxels of the new one were compared with it. Interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse

import wkwdask


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="the dataset")
    parser.add_argument("--level", type=int, help="LZ4HC level, 1 to 12 (default 5)")
    parser.add_argument("--cluster", metavar="FILE|NAME", help="where it runs: wkwdask cluster list (default: the cores of this machine)")
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        compress(options.dataset, options.level)


def compress(dataset: str, level: int | None) -> None:
    """Compress what is raw, layer by layer."""
    for layer in wkwdask.info(dataset).layers:
        raw = [mag.mag for mag in layer.mags if mag.compression == "raw"]
        if not raw:
            print(f"{layer.name}: nothing is raw")
            continue
        report = wkwdask.compress(dataset, layer=layer.name, mags=raw, level=level)
        print(f"{layer.name}: {report.nbytes_in / 1e6:.1f} MB of voxels take {report.nbytes_out / 1e6:.1f} MB now")


if __name__ == "__main__":  # processes of a pool import this file again
    main()
