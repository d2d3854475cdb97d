"""WKW and N5 files as Zarr: codecs and stores of zarr-python, generated documents, and what the
viewer serves. The one place that knows two formats."""
