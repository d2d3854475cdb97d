"""The parts of an array that nothing but zeros is stored for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.kernels.blocks.batch import clear_into

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Zeros:
    """Fills cubes of an array with zeros, either at once or only when something else turns out not to be zero."""

    def __init__(self, out: npt.NDArray[Any], *, at_once: bool) -> None:
        self._out = out
        self._waiting: list[tuple[npt.NDArray[np.int64], int]] = []
        self.at_once = at_once
        """Whether what is found to be zero must be filled straight away."""

    def add(self, table: npt.NDArray[np.int64], edge: int) -> None:
        """Take cubes that are all zero, as :func:`wkwdask.kernels.blocks.batch.clear_into` does."""
        if self.at_once:
            clear_into(table, edge, self._out)
        else:
            self._waiting.append((table, edge))

    def decoded(self, table: npt.NDArray[np.int64], edge: int, nonzero: int) -> None:
        """Take note of a batch of blocks that was decoded with ``fill_zeros=self.at_once``."""
        if self.at_once:
            return
        if not nonzero:
            self._waiting.append((table, edge))
            return
        for cubes, cube_edge in self._waiting:
            clear_into(cubes, cube_edge, self._out)
        self._waiting.clear()
        self.at_once = True
