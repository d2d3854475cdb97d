"""The compiled loop of ``fold``."""

from __future__ import annotations

from typing import Any

import numpy as np

from wkwdask.kernels.compiler import kernel


@kernel
def fold_words(words: Any, state: Any) -> None:
    """Mix words into eight numbers in turn; a word is multiplied, and turned so that its high bits reach the low ones."""
    odd = np.uint64(0x9E3779B97F4A7C15)
    left, right = np.uint64(29), np.uint64(35)
    for n in range(0, len(words) - 7, 8):
        for lane in range(8):
            mixed = (state[lane] ^ words[n + lane]) * odd
            state[lane] = (mixed << left) | (mixed >> right)
