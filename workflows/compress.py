"""Compress all mags of a dataset that are raw, in their place, and say what that saves.

    python workflows/compress.py DATASET
    python workflows/compress.py DATASET --level 9

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
    options = parser.parse_args()
    for layer in wkwdask.info(options.dataset).layers:
        raw = [mag.mag for mag in layer.mags if mag.compression == "raw"]
        if not raw:
            print(f"{layer.name}: nothing is raw")
            continue
        report = wkwdask.compress(options.dataset, layer=layer.name, mags=raw, level=options.level)
        print(f"{layer.name}: {report.nbytes_in / 1e6:.1f} MB of voxels take {report.nbytes_out / 1e6:.1f} MB now")


if __name__ == "__main__":  # processes of a pool import this file again
    main()
