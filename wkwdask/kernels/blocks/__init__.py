"""Blocks of WKW files: locate, read, decode and encode many of them in one compiled call.

``locate`` finds the stored blocks of a box and the byte ranges to read; ``batch`` decodes and
encodes. ``*_compiled`` hold the loops, ``batch_python`` the fallback without LZ4's C functions, and
``layout`` what all of them share.
"""
