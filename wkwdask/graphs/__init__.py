"""Everything that uses dask: runners of jobs, and volumes as dask arrays. Formats are reached only
through the protocols of ``model``.

- ``runners``: choose the runner of a job by dask's own rule, and run it; start here
- ``local_run``, ``client_run``, ``job_array``: threads and processes of this machine, a dask
  cluster, a SLURM job array without dask
- ``task_queue``: tasks that can start, shared by the runners
- ``packing``: tasks as bytes, for a cluster
- ``read``, ``selection``: a volume as a dask array, and orthogonal or pointwise indexing of it
- ``write``: a dask array as the source of a mag
- ``signals``: SIGTERM as an exception

May import all folders below ``api`` and ``cli``. No folder below this one imports dask.
"""
