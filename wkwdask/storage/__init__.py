"""The only floor that opens anything: files, volumes of each format, datasets, and the folders of jobs."""
