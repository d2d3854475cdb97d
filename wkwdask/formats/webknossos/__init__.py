"""WEBKNOSSOS datasets: ``datasource-properties.json``, layers and mags in WKW, and exported
annotations.

Start with ``datasource`` (parse and edit the JSON, pure functions on text) and ``dataset`` (resolve
a path to layers and mags). ``format`` is the entry of this format in the registry. ``target`` lays
out new mags, ``layer_edit`` lists them in the JSON once they exist, and ``summary`` collects the
output of ``wkwdask info``. ``inspection`` and ``json_repair`` serve verify and repair.
``annotation`` reads volume annotations and NML files.

Modules here may import ``model``, ``plans``, ``kernels``, ``geometry``, ``store`` and other formats
(blocks and files of a mag are in ``wkwdask.formats.wkw``), never ``runs``, ``verbs`` or dask. They
reach files through ``wkwdask.store`` only.
"""
