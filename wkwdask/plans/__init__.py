"""Pure arithmetic: which regions and files a job reads and writes, how arrays are cut, which mags a pyramid has. Opens nothing."""
