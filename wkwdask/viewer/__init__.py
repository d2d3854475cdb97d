"""Volumes in a browser, in napari and as pictures, and a demo dataset.

:mod:`wkwdask.viewer.view` shows layers and arrays in Neuroglancer: ``layers`` and ``arrays`` find
out how each is served, ``client_state`` makes the first view, ``server`` answers requests for
files, and ``http`` speaks with browsers. :mod:`wkwdask.viewer.napari` opens layers for napari.
:mod:`wkwdask.viewer.preview` draws orthogonal ``slices`` with Pillow, :mod:`wkwdask.viewer.demo`
computes a small dataset that resembles cortex. Start with :func:`wkwdask.viewer.view.view`.
"""
