"""Zarr arrays of versions 2 and 3, and OME-NGFF images ("OME-Zarr"): reading, writing, and views of
WKW and precomputed data as Zarr.

- ``format`` registers the format; ``layer`` turns a path or URL into images; ``target`` plans new
  arrays of an image.
- ``array`` describes one array as a :class:`wkwdask.model.stored_array.StoredArray`, with the
  chunks of ``codec`` and the shards of ``shards``.
- ``documents`` formats the JSON of arrays and groups; ``ngff`` parses and formats ``multiscales``;
  ``ngff_edit`` changes it after a job.
- ``views`` and ``view_store`` show layers as Zarr without copying voxels; ``codecs`` are plugins of
  zarr-python.

Start with ``array``. This folder imports ``model``, ``store``, ``geometry``, ``kernels`` and
``plans``, never ``runs``, ``graphs`` or ``verbs``. zarr-python is imported lazily, and only where
an array has codecs that ``codec`` does not know; ``codecs`` and ``view_store`` need it.
"""
