"""Stand-in for the parts of PyTorch that ``docs/training.md`` uses, for environments without it."""

from __future__ import annotations

import numpy as np


class Tensor:
    """Array whose type prints as in PyTorch."""

    def __init__(self, values):
        self._values = values
        self.shape = values.shape
        self.dtype = f"torch.{values.dtype}"

    def __gt__(self, other):
        return Tensor(self._values > other)

    def __bool__(self):
        return bool(self._values)

    def any(self):
        return Tensor(self._values.any())


def from_numpy(values):
    return Tensor(values)


def stack(tensors):
    return Tensor(np.stack([tensor._values for tensor in tensors]))
