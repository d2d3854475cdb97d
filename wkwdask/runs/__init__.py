"""Jobs: their folder, journal, tasks, retries, publication, progress and reports, independent of
what a job computes.

Imports ``formats`` and the folders below it, and never dask; runners in ``graphs`` execute the
tasks.

Start with ``drive``, which runs a plan of phases from start to publication. ``staged`` describes
the mags of a job, ``job_folder`` creates, publishes and recovers its folder, and ``job_records``
inspects one without changing it. ``journal`` lets a job resume, ``retries`` decides about failed
tasks, ``parts`` joins shards that several tasks wrote, and ``batch_file`` hands tasks to a SLURM
array. ``calls`` records what the user called, and ``progress``, ``report`` and ``status`` are what
a user sees.
"""
