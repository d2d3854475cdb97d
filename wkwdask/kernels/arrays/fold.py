"""The door to telling arrays apart fast: all of their bytes folded into 64, ten times as fast as by a hash of ``hashlib``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_NBYTES = 64


def fold(array: npt.NDArray[Any]) -> bytes:
    """Fold the memory of an array into few bytes, which differ where an array differs by accident; who means harm can find two that do not.

    Examples
    --------
    >>> import numpy as np
    >>> fold(np.arange(20)) == fold(np.arange(20)), fold(np.arange(20)) == fold(np.arange(1, 21))
    (True, False)
    """
    from wkwdask.kernels.arrays import fold_compiled

    raw = array.ravel(order="K").view(np.uint8)
    whole = raw.size // _NBYTES * _NBYTES
    words = raw[:whole]
    if words.ctypes.data % 8:
        words = words.copy()  # compiled loops take words where words can lie
    words = words.view(np.uint64)
    words.flags.writeable = False  # always, so that the loop is compiled once
    state = np.arange(1, _NBYTES // 8 + 1, dtype=np.uint64)
    fold_compiled.fold_words(words, state)
    return state.tobytes() + raw[whole:].tobytes()
