"""Datasets of WEBKNOSSOS: the JSON, its layers, annotations."""
