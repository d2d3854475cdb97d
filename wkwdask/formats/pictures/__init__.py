"""Plain sources and exports: stacks of TIFF, PNG and JPEG images, arrays in npy, HDF5, MRC, NIfTI
and Zarr, without the metadata of a dataset.

Start with ``sources``, which opens a path as a volume. ``image_stack`` is a volume of image files:
``slices`` (records of sections), ``images`` (PNG, JPEG) and ``tiff_pages`` (TIFF) read them.
``array_file`` is a volume of one array in a file.

``outputs`` writes a mag to npy, Zarr or TIFF, and ``scratch`` holds decoded sections on disk
meanwhile.

Modules import ``store``, ``model``, ``geometry``, ``kernels`` and ``plans``, never dask. They reach
files through ``store``, tifffile, h5py, mrcfile and nibabel.
"""
