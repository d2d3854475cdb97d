"""Levels of LZ4HC. The command line imports this module, so it imports nothing."""

USUAL_LEVEL = 5
"""Level for most data: higher ones make files a few percent smaller and take several times as
long."""

AUTO_LEVEL = 0
"""Stands for the usual level in blocks with repeats, and for the fast LZ4 encoder in all others,
see ``repeats``."""
