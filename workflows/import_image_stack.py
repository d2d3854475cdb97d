"""Import a stack of sections as a layer with its pyramid, and print the result.

    python workflows/import_image_stack.py 'raw/section_*.tif' dataset --voxel-size 4,4,35 --range
    0,4095

The same command resumes an interrupted run. With --cluster it runs on a cluster, else on all cores
of this machine.
"""

from __future__ import annotations

import argparse

import wkwdask


def numbers(text: str) -> tuple[float, ...]:
    """Parse numbers with commas between them."""
    return tuple(float(part) for part in text.split(","))


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Import a stack of sections as a layer with its pyramid."
    )
    parser.add_argument(
        "source",
        help=(
            "a folder of TIFF, PNG or JPEG, a pattern in quotes, or one file: TIFF, .npy, "
            "file.h5:/dataset, .zarr, .mrc"
        ),
    )
    parser.add_argument("dataset", help="new or existing WEBKNOSSOS dataset")
    parser.add_argument("--layer", default="color", help="the layer (default: color)")
    parser.add_argument(
        "--voxel-size", type=numbers, help="size of a voxel along x, y, z [nm], for a new dataset"
    )
    parser.add_argument(
        "--range",
        type=numbers,
        help="values that become 0 and 255 (default: values are not changed)",
    )
    parser.add_argument(
        "--fill", action="store_true", help="fill bad and missing sections with zeros"
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE|NAME",
        help="run on this cluster, see wkwdask cluster list (default: the cores of this machine)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Import the sections, then print the shape of the layer."""
    options = parse_arguments(arguments)
    with wkwdask.cluster(options.cluster):
        report = wkwdask.convert(
            options.source,
            options.dataset,
            layer=options.layer,
            voxel_size=options.voxel_size,
            dtype=None if options.range is None else "uint8",
            value_range=options.range,
            on_error="fill" if options.fill else "fail",
            pyramid=True,
        )
    print(report)
    layer = wkwdask.open(options.dataset, layer=options.layer, mag=1)
    print(f"{options.layer}: {layer.dtype} of shape (c, x, y, z) = {layer.shape}")


if __name__ == "__main__":
    main()
