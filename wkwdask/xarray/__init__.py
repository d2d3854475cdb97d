"""xarray engines for stored volumes, and the accessor ``.wkw`` of DataArrays.

:mod:`wkwdask.xarray.backend` defines the engines ``"wkw"``, ``"precomputed"``, ``"n5"`` and
``"ngff"``, :mod:`wkwdask.xarray.variables` builds lazy variables with coordinates,
:mod:`wkwdask.xarray.accessor` the accessor. xarray loads the backends through entry points, so
their imports stay light. The folder may import formats, model and geometry; graphs, api and viewer
only inside functions.
"""
