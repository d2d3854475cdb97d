"""N5 datasets: ``attributes.json`` to records, stored blocks to arrays and back, and the Zarr v3 metadata that says the same. Opens nothing."""
