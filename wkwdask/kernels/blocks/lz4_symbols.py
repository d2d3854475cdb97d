"""Make LZ4's C functions inside python-lz4 callable from compiled code.

The extension module of python-lz4 links LZ4 statically, and exports its functions on Linux and
macOS. :func:`register` tells LLVM the names and addresses of these functions. Compiled kernels
refer to the names only, so machine code that another process has cached links as well. Where the
functions are not exported, :func:`register` returns False, and callers use python-lz4 block by
block.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

import llvmlite.binding
import lz4.block

FALLBACK_VARIABLE = "WKWDASK_LZ4"
DECOMPRESS = "LZ4_decompress_safe"
DECOMPRESS_PARTIAL = "LZ4_decompress_safe_partial"
COMPRESS = "LZ4_compress_default"
COMPRESS_HC = "LZ4_compress_HC"
_NAMES = (DECOMPRESS, DECOMPRESS_PARTIAL, COMPRESS, COMPRESS_HC)


@cache
def register() -> bool:
    """Register the LZ4 functions with LLVM, and return whether all of them are available."""
    if os.environ.get(FALLBACK_VARIABLE) == "python":
        return False
    try:
        # The import of lz4.block has loaded the library and keeps it loaded; this returns another
        # handle to it.
        library = ctypes.CDLL(lz4.block._block.__file__)
        addresses = {
            name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _NAMES
        }
    except (AttributeError, OSError):
        return False
    for name, address in addresses.items():
        llvmlite.binding.add_symbol(name, address)
    return True
