"""Integer geometry: boxes, mags, grids and Morton codes. Opens nothing and knows no array library but numpy."""
