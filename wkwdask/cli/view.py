"""Command that shows layers in a browser."""

from __future__ import annotations

from typing import Any

import click

from wkwdask.cli.options import numbers_callback, parse_callback
from wkwdask.geometry.mag import Mag


@click.command(short_help="Show layers in a browser, with Neuroglancer.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--layer",
    "layers",
    multiple=True,
    help="Show only this layer; may be repeated. Default: all layers.",
)
@click.option(
    "--mag",
    callback=parse_callback(Mag.parse, "--mag takes a mag such as 2 or 2-2-1"),
    help="Show only this mag. Default: all mags.",
)
@click.option(
    "--position",
    metavar="X,Y,Z",
    callback=numbers_callback("position", int),
    help="First position [voxels of mag 1]. Default: the middle.",
)
@click.option(
    "--shader",
    metavar="GLSL",
    help=(
        "Shader of images, as Neuroglancer expects it. Default: gray values between two sampled "
        "percentiles."
    ),
)
@click.option("--no-browser", is_flag=True, help="Print the URL only.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port on this machine. Default: any free port.",
)
@click.option(
    "--cors",
    metavar="ORIGIN",
    help=(
        "Allow pages of this origin, such as https://neuroglancer-demo.appspot.com, to read the "
        "layers."
    ),
)
@click.option(
    "--allow-external",
    is_flag=True,
    help="Show levels that a document of a volume names outside of it. Default: refuse.",
)
def view(paths: tuple[str, ...], layers: tuple[str, ...], no_browser: bool, **options: Any) -> None:
    """Show datasets, layers, mags or volumes of any format in a browser, until Ctrl-C.

    Neuroglancer and the data are served on this machine only, below a secret path. Blocks of WKW
    are not decoded. Needs the extra view.

    \b
    Examples:
      wkwdask view dataset
      wkwdask view dataset precomputed://other-segmentation --layer color
      wkwdask view dataset --position 1200,2100,350 --no-browser
    """
    from wkwdask.viewer.view import open_browser, stop_event, tunnel_command
    from wkwdask.viewer.view import view as make_view

    with make_view(*paths, layer=layers, **options) as shown:
        stopped = stop_event()
        for note in shown.notes:
            click.echo(note, err=True)
        click.echo(shown.url)
        tunnel = tunnel_command(shown.port)
        if tunnel is not None:
            click.echo(f"on your own machine: {tunnel}", err=True)
        if not no_browser:
            open_browser(shown.url)
        click.echo("Ctrl-C stops the server", err=True)
        stopped.wait()


COMMANDS = (view,)
