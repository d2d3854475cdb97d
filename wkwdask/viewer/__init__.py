"""Pictures of datasets, and a dataset to look at."""
