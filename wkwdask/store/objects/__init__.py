"""Files on servers: buckets, web servers and the protocols that fsspec reads."""
