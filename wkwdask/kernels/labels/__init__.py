"""Labels of segmentations: connected components, statistics of each label, counts of values, maps
of ids."""
