"""Verbs that only datasets of WEBKNOSSOS have."""
