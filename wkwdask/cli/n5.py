"""The command that describes N5 as Zarr."""

from __future__ import annotations

import click


@click.command("n5-as-zarr", short_help="N5 as Zarr v3: print, write or remove its zarr.json files.")
@click.argument("path")
@click.option("--form", type=click.Choice(("n5_default", "offset")), default="n5_default", show_default=True, help="Codecs that describe the stored blocks.")
@click.option("--write", is_flag=True, help="Write each zarr.json beside its attributes.json.")
@click.option("--remove", is_flag=True, help="Remove the zarr.json files that --write made.")
def n5_as_zarr(path: str, form: str, write: bool, remove: bool) -> None:
    """Describe N5 data as Zarr v3, so that zarr-python opens the same files once this package is installed.

    Prints the zarr.json of every group and dataset; one of somebody else is never replaced or removed.

    \b
    Examples:
      wkwdask n5-as-zarr volume.n5
      wkwdask n5-as-zarr volume.n5 --write
      wkwdask n5-as-zarr volume.n5/em/s0 --form offset
    """
    import json

    from wkwdask import n5_as_zarr as describe

    documents = describe(path, form=form, write=write, remove=remove)  # type: ignore[arg-type]
    if write or remove:
        click.echo(f"{len(documents)} zarr.json files {'written' if write else 'removed'}")
    else:
        click.echo(json.dumps(documents, indent=2))


COMMANDS = (n5_as_zarr,)
