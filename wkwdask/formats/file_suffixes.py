"""Suffixes of images and of arrays in files."""

TIFF_SUFFIXES = (".tif", ".tiff")
IMAGE_SUFFIXES = (*TIFF_SUFFIXES, ".png", ".jpg", ".jpeg")
HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
MRC_SUFFIXES = (".mrc", ".rec", ".st", ".map", ".ccp4", ".mrcs", ".ali", ".preali")
NIFTI_SUFFIXES = (".nii",)
EXPORT_SUFFIXES = (*TIFF_SUFFIXES, ".npy", ".zarr")
"""Suffixes of exported images and arrays."""
READ_SUFFIXES = (
    *IMAGE_SUFFIXES,
    ".npy",
    *HDF5_SUFFIXES,
    ".zarr",
    *MRC_SUFFIXES,
    *NIFTI_SUFFIXES,
)
