"""Jobs of the verbs: each module turns the arguments of one verb into a checked plan, and the plan
into tasks.

A verb ``lay_out_*`` function opens the source, chooses the target's layout and stages the job;
nothing is written before the plan runs. The plan is a :class:`wkwdask.runs.drive.Plan` or ``Work``:
a generator of phases, each with a job whose tasks a runner executes on threads or on a dask
cluster. Specs (``RegionSpec``, ``SpliceSpec``...) are the picklable bodies of tasks.

This folder imports ``runs`` and everything below it, never dask and never ``api``. Files are
reached through ``store`` only. Start with ``sources`` (how a level is opened and staged), then
``pyramid`` (the longest job) and ``rechunk`` (the shortest).
"""
