"""The command that prints TIFF headers for chunks."""

from __future__ import annotations

import base64
import json

import click

from wkwdask.cli.shared import numbers

STACKS = ("pages", "imagej", "tall")


@click.command("tiff-prefix", short_help="Print the header that makes TIFF files of Zarr chunks.")
@click.argument("shape")
@click.argument("dtype")
@click.option(
    "--byteorder", type=click.Choice(("little", "big")), default="little", show_default=True, help="Byte order, the same as in the array's codec bytes."
)
@click.option("--axes", help="A letter per axis: y, x, s behind them for samples such as RGB, t, z, c before them. Default: yx or zyx.")
@click.option("--stack", type=click.Choice(STACKS), default="pages", show_default=True, help="How the planes of a chunk are described.")
@click.option("--codec", is_flag=True, help="Print the whole entry of codecs in zarr.json.")
def tiff_prefix(shape: str, dtype: str, byteorder: str, axes: str | None, stack: str, codec: bool) -> None:
    """Print the base64 of a TIFF header for uncompressed chunks of SHAPE, the last axis fastest: the prefix of the codec offset.

    \b
    Examples:
      wkwdask tiff-prefix 256,256 uint16
      wkwdask tiff-prefix 512,512,3 uint8 --axes yxs
      wkwdask tiff-prefix 64,64,64 float32 --codec
    """
    from wkwdask.formats.zarr.codecs.tiff import tiff_prefix as make_prefix

    prefix = make_prefix(numbers(shape, "shape", int), dtype, byteorder, axes=axes, stack=stack)
    text = base64.b64encode(prefix).decode("ascii")
    click.echo(json.dumps({"name": "offset", "configuration": {"offset": len(prefix), "prefix": text}}) if codec else text)


COMMANDS = (tiff_prefix,)
