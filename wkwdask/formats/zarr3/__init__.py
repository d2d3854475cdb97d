"""What this package adds to Zarr 3: codecs, and the names of chunks. Opens nothing."""
