"""Blocks of WKW files: many in one compiled call."""
