"""Updates of pyramids: existing coarser mags follow the changes of finer files."""
