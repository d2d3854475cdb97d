"""Commands that convert between formats and describe data as Zarr or TIFF."""

from __future__ import annotations

import base64
import json
import warnings
from typing import Any, Literal

import click

import wkwdask
from wkwdask.cli.options import (
    StorageCommand,
    box_option,
    external_option,
    index_option,
    numbers_callback,
    resume_options,
    runs_on_cluster,
    space_option,
    storage_options,
)
from wkwdask.cli.results import Facts, prints_facts
from wkwdask.formats.registry import storage_records


@click.command(cls=StorageCommand, short_help="Convert images, arrays and volumes between formats.")
@click.argument("source", nargs=-1, required=True)
@click.argument("target")
@click.option("--layer", help="Layer of the dataset. Default for a new one: color or segmentation.")
@click.option(
    "--mag", metavar="MAG", help="Mag to write, 1 by default, or to export, by default the finest."
)
@click.option(
    "--axes",
    metavar="zyx",
    help=(
        "Order of the source's axes, such as xyz or czyx (N5: x first). Default: as the file "
        "states, else zyx or czyx."
    ),
)
@index_option
@click.option(
    "--channels",
    metavar="N,N",
    callback=numbers_callback("channels", int),
    help="Channels to convert, such as 0,1,2 to drop alpha. Default: all.",
)
@click.option("--dtype", help="Data type, such as uint8. Default: unchanged.")
@click.option(
    "--range",
    "value_range",
    metavar="LOW,HIGH",
    callback=numbers_callback("range", float),
    help=(
        "Values that become the minimum and the maximum of the data type; values between are "
        "scaled, others are clipped."
    ),
)
@click.option(
    "--voxel-size",
    metavar="X,Y,Z",
    callback=numbers_callback("voxel-size", float),
    help="Size of a voxel of mag 1, for a new dataset. Default: as stated in the source.",
)
@click.option("--unit", default="nm", show_default=True, help="Unit of the voxel size.")
@click.option(
    "--offset",
    metavar="X,Y,Z",
    callback=numbers_callback("offset", int),
    help=(
        "Position of the first voxel of the source [voxels of the written mag; of mag 1 if several "
        "are converted]. Default: as stated by CREMI, else 0,0,0."
    ),
)
@box_option("Bounding box to convert [voxels of mag 1 of the dataset].")
@click.option(
    "--category",
    type=click.Choice(("color", "segmentation")),
    help="Category of a new layer. Default: chosen by the data type.",
)
@click.option("--pyramid", is_flag=True, help="Build the coarser mags too (WKW, precomputed).")
@click.option(
    "--on-error",
    type=click.Choice(("fail", "fill")),
    default="fail",
    show_default=True,
    help="Treatment of bad and missing sections: stop with an error, or fill them with zeros.",
)
@click.option(
    "--strict-box",
    is_flag=True,
    help=(
        "Decode copied blocks that cross the bounding box, and leave out their voxels outside. "
        "Default: copy them, and report if a check finds any."
    ),
)
@click.option(
    "--verify",
    is_flag=True,
    help=(
        "Decode and compare all voxels before a mag is published. Default: copied chunks are "
        "checked without decoding."
    ),
)
@storage_options(records=storage_records(exports=True))
@resume_options("Replace an existing target; continue an interrupted run.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the plan: tasks, files, bytes, memory, time. Nothing is written.",
)
@click.option(
    "--allow-external",
    is_flag=True,
    help=(
        "Allow writing where paths or links lead out of the dataset, and reading HDF5 data outside "
        "the file's folder. Default: refuse."
    ),
)
@space_option
@runs_on_cluster
def convert(source: tuple[str, ...], target: str, dry_run: bool, **options: Any) -> Any:
    """Convert images, arrays and volumes to WKW, precomputed, N5 or OME-NGFF, or export WKW as
    images.

    \b
    SOURCE is one of
      a folder of TIFF, PNG or JPEG sections, a pattern in quotes, or several files
      a TIFF with many pages, OME-TIFF, .npy, file.h5:/dataset, MRC, NIfTI, a Zarr array
      precomputed://PATH, n5://PATH or zarr://PATH (OME-NGFF), with all resolutions; PATH may be a URL
      a WKW dataset, layer or mag

    \b
    TARGET is one of
      a WKW dataset, layer or mag (not for a WKW source: use copy or rechunk); of a layer that a dataset stores as Zarr or N5,
      DATASET/NAME/1 gets mag 1, DATASET/NAME all mags, and DATASET a layer of the same name
      precomputed://PATH, n5://PATH, zarr://PATH or PATH.ome.zarr (OME-NGFF), PATH.ozx (OME-NGFF in one zip)
      for an export of WKW: .ome.tif, .tif, .npy, .zarr, or a folder of TIFFs

    The target is published when it is complete; the same command continues an interrupted run.

    From WKW to OME-NGFF, blocks become chunks without decoding (LZ4 in Blosc frames), unless a
    storage option such as --compression or --chunk-shape is given. Back to WKW, such chunks become
    blocks. --dry-run says what is copied and what is decoded.

    \b
    Examples:
      wkwdask convert sections/ dataset --voxel-size 4,4,35 --pyramid --dry-run
      wkwdask convert 'raw/slice_*.tif' dataset/color/1 --dtype uint8 --range 0,4095
      wkwdask convert labels.h5:/volumes/labels dataset --layer neurons --category segmentation
      wkwdask convert dataset/color/1 sections-of-it/ --bounding-box 1000,1000,500,512,512,100
      wkwdask convert dataset precomputed://neurons --layer segmentation --shard-shape auto
      wkwdask convert sections/ precomputed://em --voxel-size 4,4,35 --encoding jpeg --shard-shape auto --pyramid
      wkwdask convert dataset n5://volume.n5/em --layer color
      wkwdask convert precomputed://gs://bucket/em dataset --layer color --bounding-box 1000,1000,500,512,512,100
      wkwdask convert dataset em.ome.zarr --layer color
      wkwdask convert dataset small.ome.zarr --layer color --compression zstd
      wkwdask convert dataset em.ome.zarr/labels/neurons --layer segmentation
    """  # noqa: E501
    from wkwdask.errors import SectionWarning

    if options["value_range"] is not None and len(options["value_range"]) != 2:
        raise click.UsageError(
            f"--range takes two numbers, LOW,HIGH, got {len(options['value_range'])}"
        )
    verb = wkwdask.plan_convert if dry_run else wkwdask.convert

    def call() -> Any:
        with warnings.catch_warnings():
            # the report, or the plan, names the sections
            warnings.simplefilter("ignore", SectionWarning)
            return verb(source[0] if len(source) == 1 else source, target, **options)

    return call


@click.command(
    "zarr-view", short_help="Add Zarr metadata so that zarr-python can read WKW in place."
)
@click.argument("path")
@click.option("--layer", help="Layer to describe. Default: all.")
@click.option("--remove", is_flag=True, help="Remove the files that this command wrote.")
@external_option
@prints_facts
def zarr_view(path: str, layer: str | None, remove: bool, allow_external: bool) -> Facts:
    """Add small zarr.json files to the WKW files of a dataset, layer or mag: Zarr 3 with OME-NGFF
    0.5. Voxels are not copied.

    zarr-python and packages that use it (dask, ome-zarr, napari) can then read the data if wkwdask,
    with its codec "wkw", is installed. A zarr.json of other software is never replaced or removed.

    \b
    Examples:
      wkwdask zarr-view dataset
      wkwdask zarr-view dataset --remove
    """
    verb = wkwdask.remove_zarr_view if remove else wkwdask.write_zarr_view
    paths = verb(path, layer=layer, allow_external=allow_external)
    return Facts(
        {"removed" if remove else "written": paths},
        "\n".join(f"removed {one}" if remove else one for one in paths),
    )


@click.command("n5-as-zarr", short_help="Describe N5 as Zarr v3, in zarr.json files.")
@click.argument("path")
@click.option(
    "--form",
    type=click.Choice(("n5_default", "offset")),
    default="n5_default",
    show_default=True,
    help="Codecs that describe the stored blocks.",
)
@click.option("--write", is_flag=True, help="Write each zarr.json beside its attributes.json.")
@click.option("--remove", is_flag=True, help="Remove the zarr.json files that --write made.")
@external_option
@prints_facts
def n5_as_zarr(
    path: str,
    form: Literal["n5_default", "offset"],
    write: bool,
    remove: bool,
    allow_external: bool,
) -> Facts:
    """Describe N5 data as Zarr v3, so that zarr-python can open the same files if wkwdask is
    installed.

    Prints the zarr.json of each group and dataset. A zarr.json of other software is never replaced
    or removed.

    \b
    Examples:
      wkwdask n5-as-zarr volume.n5
      wkwdask n5-as-zarr volume.n5 --write
      wkwdask n5-as-zarr volume.n5/em/s0 --form offset
    """
    documents = wkwdask.n5_as_zarr(
        path, form=form, write=write, remove=remove, allow_external=allow_external
    )
    done = f"{len(documents)} zarr.json files {'written' if write else 'removed'}"
    return Facts(documents, done if write or remove else json.dumps(documents, indent=2))


@click.command("tiff-prefix", short_help="Print the header that makes TIFF files of Zarr chunks.")
@click.argument("shape", callback=numbers_callback("shape", int))
@click.argument("dtype")
@click.option(
    "--byteorder",
    type=click.Choice(("little", "big")),
    default="little",
    show_default=True,
    help="Byte order; must be that of the array's codec bytes.",
)
@click.option(
    "--axes",
    help=(
        "One letter per axis: y, x; after them s for samples such as RGB; before them t, z, c. "
        "Default: yx or zyx."
    ),
)
@click.option(
    "--stack",
    type=click.Choice(("pages", "imagej", "tall")),
    default="pages",
    show_default=True,
    help="Description of the planes of a chunk.",
)
@click.option("--codec", is_flag=True, help="Print the whole entry of codecs in zarr.json.")
@prints_facts
def tiff_prefix(
    shape: tuple[int, ...], dtype: str, byteorder: str, axes: str | None, stack: str, codec: bool
) -> Facts:
    """Print a TIFF header in base64, which the Zarr codec offset takes as its prefix. Chunks are
    uncompressed, of SHAPE, with the last axis fastest.

    \b
    Examples:
      wkwdask tiff-prefix 256,256 uint16
      wkwdask tiff-prefix 512,512,3 uint8 --axes yxs
      wkwdask tiff-prefix 64,64,64 float32 --codec
    """
    prefix = wkwdask.tiff_prefix(shape, dtype, byteorder, axes=axes, stack=stack)
    text = base64.b64encode(prefix).decode("ascii")
    entry = {"name": "offset", "configuration": {"offset": len(prefix), "prefix": text}}
    return Facts(entry, json.dumps(entry) if codec else text)
