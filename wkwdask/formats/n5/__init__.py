"""N5 containers: reading, writing, and views as Zarr.

- ``format`` registers the format; ``layer`` turns a path or URL into images; ``target`` plans new
  datasets and their metadata.
- ``attributes`` parses ``attributes.json``; ``block`` encodes one block; ``array`` describes a
  dataset as a stored array.
- ``zarr_view`` describes datasets as Zarr v3; ``zarr_store`` is a read-only zarr store over them.

Start with ``block``, then ``array``. This folder imports ``model``, ``store``, ``geometry`` and the
JSON helpers of ``formats.zarr``; never ``runs``, ``graphs`` or ``verbs``. Only ``zarr_store``
imports zarr.
"""
