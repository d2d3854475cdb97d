"""What a configuration comes to, as text: the job script, the batch script, the manifests, the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wkwdask.clusters.config import ClusterConfig


def render(config: ClusterConfig) -> str:
    """Write what would be submitted for a configuration; nothing is submitted, and no queueing system is needed."""
    if config.text:
        return config.text
    if config.kind == "jobqueue":
        from wkwdask.clusters.jobqueue import job_script

        return job_script(config)
    import yaml

    return str(yaml.safe_dump({name: value for name, value in config.values.items() if value not in (None, {}, [])}, sort_keys=False))
