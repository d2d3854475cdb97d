"""Compress all raw mags of a dataset in place, and print the savings.

    python workflows/compress.py DATASET
    python workflows/compress.py DATASET --level 9 --cluster slurm-jobqueue

A mag is replaced after all voxels of the new one have been compared with it. The same command
resumes an interrupted run.
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
        "--level", type=_parse_level, metavar="auto|1..12", help="LZ4HC level (default: auto)"
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    options = parser.parse_args()
    with wkwdask.cluster(options.cluster):
        compress(options.dataset, options.level)


def _parse_level(text: str) -> int | str:
    return text if text == "auto" else int(text)


def compress(dataset: str, level: int | str | None) -> None:
    """Compress raw mags, layer by layer."""
    for layer in wkwdask.info(dataset).layers:
        raw = [mag.mag for mag in layer.mags if mag.compression == "raw"]
        if not raw:
            print(f"{layer.name}: no raw mags")
            continue
        report = wkwdask.compress(dataset, layer=layer.name, mags=raw, level=level)
        print(
            f"{layer.name}: {report.nbytes_in / 1e6:.1f} MB compressed to "
            f"{report.nbytes_out / 1e6:.1f} MB"
        )


if __name__ == "__main__":  # worker processes import this file
    main()
