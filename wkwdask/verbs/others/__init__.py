"""Verbs as they are for the other formats."""
