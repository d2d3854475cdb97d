"""Images and arrays of other software: TIFF, PNG, HDF5, MRC, npy."""
