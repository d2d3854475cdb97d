"""What the C library calls the functions that open and read files, and how folders are opened."""

from __future__ import annotations

import os
import sys

OPENAT, PREAD, CLOSE = "openat", "pread", "close"
ERRNO = "__error" if sys.platform == "darwin" else "__errno_location"
FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""How a folder is opened: where the system can, one that may be entered need not be readable."""
