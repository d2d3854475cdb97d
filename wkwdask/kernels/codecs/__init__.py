"""Compiled inner loops of codecs: compressed segmentation and Compresso. ``formats/precomputed``
checks the streams and calls them."""
