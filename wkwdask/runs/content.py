"""What a job writes that gets an array: by what the array is known again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wkwdask.store.locks import ShardBox

    Vec4 = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Content:
    """What is written, and by what it is known again."""

    shape: Vec4
    """Channels, and extent along x, y, z."""
    dtype: Any
    """Type of one channel."""
    fingerprint: str
    """Of the array itself."""
    token: str | None = None
    """What the user says that the array is, in place of its fingerprint."""
    in_memory: bool = False
    """Whether the fingerprint is that of the voxels, and not that of a graph."""
    shards: ShardBox | None = None
    """Shards of a living mag that are written, None where it is a new one."""

    @property
    def settings(self) -> dict[str, Any]:
        """What a journal keeps about it."""
        return {"dtype": str(self.dtype), "channels": self.shape[0], "token": self.token, "input": self.fingerprint}

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Settings that may differ where a job goes on: an arbitrary graph is another one in each process."""
        return () if self.in_memory and self.token is None else ("input",)

    @property
    def trusted(self) -> str:
        """Say what is trusted where a job goes on."""
        if self.token is not None:
            return f"the array is believed to be the same, since its place, shape, type and token {self.token!r} are"
        if self.in_memory:
            return "the array is the same"
        return "the array is believed to be the same, since its place, shape and type are; its voxels were not compared, and token= can name its content"
