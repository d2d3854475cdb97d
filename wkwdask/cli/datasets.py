"""Commands that create datasets and edit their JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import wkwdask
from wkwdask.cli.help import Commands
from wkwdask.cli.options import box_option, cluster_options, external_option, parse_callback
from wkwdask.cli.results import Facts, prints_facts

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_CATEGORIES = click.Choice(("color", "segmentation"))


@click.group(cls=Commands, short_help="Create a dataset; add or remove layers; edit its JSON.")
def dataset() -> None:
    """Create a dataset, or edit its datasource-properties.json.

    Each edit is atomic and holds a lock that serializes processes of wkwdask (other software does
    not honor it). Voxels are never changed, and files are deleted only by remove-layer and
    remove-mag with --delete-files.

    \b
    Examples:
      wkwdask dataset create dataset 11.24,11.24,28
      wkwdask dataset rename-layer dataset prediction membranes
    """


def _edited(edited: wkwdask.Dataset) -> Facts:
    return Facts({"path": edited.path, "datasource": edited.document}, repr(edited))


def _lengths(text: str) -> list[float]:
    return [float(length) for length in text.split(",")]


_voxel_size_argument = click.argument(
    "voxel_size",
    metavar="X,Y,Z",
    callback=parse_callback(_lengths, "a voxel size is three numbers such as 11.24,11.24,28"),
)
_unit_option = click.option(
    "--unit",
    default="nanometer",
    show_default=True,
    help="Unit of the voxel size, such as micrometer or mm.",
)


@dataset.command("create", short_help="Create a dataset without layers.")
@click.argument("path")
@_voxel_size_argument
@_unit_option
@click.option("--name", help="Name of the dataset. Default: that of the folder.")
@click.option("--keep", is_flag=True, help="Keep an existing dataset if it has this voxel size.")
@prints_facts
def create(path: str, voxel_size: list[float], unit: str, name: str | None, keep: bool) -> Facts:
    """Create a dataset without layers, with voxels of size X,Y,Z.

    \b
    Example:
      wkwdask dataset create dataset 11.24,11.24,28
    """
    return _edited(
        wkwdask.create_dataset(
            path, voxel_size, unit=unit, name=name, existing="keep" if keep else "error"
        )
    )


@dataset.command("add-layer", short_help="Add a folder with mags to the JSON as a layer.")
@click.argument("path")
@click.argument("name")
@click.option(
    "--category",
    type=_CATEGORIES,
    help="Category of the layer. Default: integers of 32 bits and more are a segmentation.",
)
@box_option("Bounding box of its data [voxels of mag 1]. Default: the extent of its files.")
@prints_facts
def add_layer(path: str, name: str, **options: Any) -> Facts:
    """Add the folder NAME of a dataset, with all its mags, to the JSON as a layer.

    \b
    Example:
      wkwdask dataset add-layer dataset prediction --category color
    """
    return _edited(wkwdask.open_dataset(path).add_layer_from_disk(name, **options))


@dataset.command("add-mags", short_help="Add mags in a layer's folder to the JSON.")
@click.argument("path")
@click.argument("layer")
@prints_facts
def add_mags(path: str, layer: str) -> Facts:
    """Add the mags in the folder of LAYER to the JSON.

    \b
    Example:
      wkwdask dataset add-mags dataset color
    """
    return _edited(wkwdask.open_dataset(path).add_mags_from_disk(layer))


@dataset.command("add-ref", short_help="Add a layer of another dataset by reference.")
@click.argument("path")
@click.argument("other")
@click.option("--name", help="Name of the layer in PATH. Default: the same.")
@click.option(
    "--relative",
    is_flag=True,
    help=(
        "Write relative paths, so that both datasets can be moved together. Default: absolute "
        "paths."
    ),
)
@click.option(
    "--any-voxel-size", is_flag=True, help="Allow another voxel size in the other dataset."
)
@prints_facts
def add_ref(path: str, other: str, **options: Any) -> Facts:
    """Add the layer OTHER, such as other-dataset/color, to the dataset PATH by reference. Its mags
    are not copied or moved.

    \b
    Example:
      wkwdask dataset add-ref dataset other-dataset/segmentation --name cells
    """
    return _edited(wkwdask.open_dataset(path).add_layer_as_ref(other, **options))


@dataset.command("rename-layer", short_help="Rename a layer.")
@click.argument("path")
@click.argument("old")
@click.argument("new")
@prints_facts
def rename_layer(path: str, old: str, new: str) -> Facts:
    """Rename the layer OLD, and its folder, to NEW. The same command completes an interrupted one.

    \b
    Example:
      wkwdask dataset rename-layer dataset prediction membranes
    """
    return _edited(wkwdask.open_dataset(path).rename_layer(old, new))


@dataset.command("remove-layer", short_help="Remove a layer from the JSON; its files stay.")
@click.argument("path")
@click.argument("name")
@click.option("--delete-files", is_flag=True, help="DELETE the files of its mags, as rm does.")
@external_option
@prints_facts
@cluster_options
def remove_layer(
    path: str, name: str, cluster: AbstractContextManager[Any], **options: Any
) -> Facts:
    """Remove a layer from the JSON. Its files stay, unless --delete-files is used.

    \b
    Examples:
      wkwdask dataset remove-layer dataset prediction
      wkwdask dataset remove-layer dataset prediction --delete-files
    """
    with cluster:
        return _edited(wkwdask.open_dataset(path).remove_layer(name, **options))


@dataset.command("remove-mag", short_help="Remove a mag from the JSON; its files stay.")
@click.argument("path")
@click.argument("layer")
@click.argument("mag")
@click.option("--delete-files", is_flag=True, help="DELETE its files, as rm does.")
@external_option
@prints_facts
@cluster_options
def remove_mag(
    path: str, layer: str, mag: str, cluster: AbstractContextManager[Any], **options: Any
) -> Facts:
    """Remove a mag from the JSON. Its files stay, unless --delete-files is used.

    \b
    Example:
      wkwdask dataset remove-mag dataset color 4-4-2
    """
    with cluster:
        return _edited(wkwdask.open_dataset(path).remove_mag(layer, mag, **options))


@dataset.command("voxel-size", short_help="Set the voxel size.")
@click.argument("path")
@_voxel_size_argument
@_unit_option
@prints_facts
def voxel_size(path: str, voxel_size: list[float], unit: str) -> Facts:
    """Set the size of a voxel of mag 1 to X,Y,Z.

    \b
    Example:
      wkwdask dataset voxel-size dataset 0.004,0.004,0.035 --unit micrometer
    """
    return _edited(wkwdask.open_dataset(path).set_voxel_size(voxel_size, unit))


@dataset.command("bounding-box", short_help="Set the bounding box of a layer.")
@click.argument("path")
@click.argument("layer")
@click.argument("box", metavar="X,Y,Z,W,H,D")
@prints_facts
def bounding_box(path: str, layer: str, box: str) -> Facts:
    """Set the bounding box of LAYER: top left corner, width, height, depth [voxels of mag 1].

    \b
    Example:
      wkwdask dataset bounding-box dataset color 1000,1000,500,512,512,256
    """
    return _edited(wkwdask.open_dataset(path).set_bounding_box(layer, box))


@dataset.command("largest-id", short_help="Store the largest id of a segmentation.")
@click.argument("path")
@click.argument("layer")
@click.option(
    "--id",
    "value",
    type=click.IntRange(0),
    help="Id to store. Default: the largest id of the finest mag, computed from all voxels.",
)
@click.option("--dry-run", is_flag=True, help="Print the id; do not store it.")
@prints_facts
@cluster_options
def largest_id(
    path: str, layer: str, value: int | None, dry_run: bool, cluster: AbstractContextManager[Any]
) -> Facts:
    """Find the largest id of a segmentation and store it in the JSON.

    \b
    Example:
      wkwdask dataset largest-id dataset segmentation
    """
    opened = wkwdask.open_dataset(path)
    with cluster:
        largest = opened[layer].compute_largest_segment_id() if value is None else value
    stored = opened[layer].largest_segment_id
    if not dry_run:
        opened.set_largest_segment_id(layer, largest)
    facts = {"layer": layer, "largest_id": largest, "stored_before": stored, "written": not dry_run}
    return Facts(facts, f"largest id of {layer}: {largest}, in the JSON: {stored}")
