"""The C function of meshoptimizer that simplifies with held vertices.

The Python package is an alpha version whose own wrapper declares no argument types for it: this
module checks the version that it knows when it is imported.
"""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from wkwdask.errors import UnsupportedError
from wkwdask.model.extras import import_extra

if TYPE_CHECKING:
    import numpy.typing as npt

_KNOWN = "0.2.30a0"

_package = import_extra("meshoptimizer", 'simplifier="meshoptimizer"', "meshes-fast")
if version("meshoptimizer") != _KNOWN:
    raise UnsupportedError(
        f"meshoptimizer {version('meshoptimizer')} is installed, and only {_KNOWN} is known: pip "
        "install 'wkwdask[meshes-fast]'"
    )
_simplify = import_extra(
    "meshoptimizer._loader", "meshoptimizer"
).lib.meshopt_simplifyWithAttributes
_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_simplify.restype = _size
_simplify.argtypes = [
    *(_pointer, _pointer, _size),  # result, indices
    *(_pointer, _size, _size),  # positions, count, stride
    *(_pointer, _size, _pointer, _size),  # no attributes
    *(_pointer, _size, ctypes.c_float, ctypes.c_uint, _pointer),  # held, least, error, options
]


def simplify(
    positions: npt.NDArray[np.float32],
    faces: npt.NDArray[np.uint32],
    is_held: npt.NDArray[np.bool_],
    least: int,
    error: float,
) -> npt.NDArray[np.uint32]:
    """Return the faces of a simpler surface between some of the same vertices: at least so many,
    and at most ``error`` away."""
    positions, faces = np.ascontiguousarray(positions), np.ascontiguousarray(faces)
    held, out = np.ascontiguousarray(is_held, np.uint8), np.empty_like(faces)
    count = _simplify(
        *(out.ctypes.data, faces.ctypes.data, faces.size),
        *(positions.ctypes.data, len(positions), positions.strides[0]),
        *(None, 0, None, 0),
        *(held.ctypes.data, 3 * least, error, _package.SIMPLIFY_ERROR_ABSOLUTE, None),
    )
    return out.reshape(-1)[:count].reshape(-1, 3)
