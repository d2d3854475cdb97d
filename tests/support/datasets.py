"""The JSON of a dataset, read and changed as text."""

from __future__ import annotations

import json
from pathlib import Path

FILE_NAME = "datasource-properties.json"


def document_of(folder):
    """Read the JSON of a dataset."""
    return json.loads((Path(folder) / FILE_NAME).read_text())


def layer_of(folder, name):
    """Read what the JSON of a dataset says of a layer."""
    return next(layer for layer in document_of(folder)["dataLayers"] if layer["name"] == name)


def edit(folder, change):
    """Change the JSON of a dataset in place."""
    document = document_of(folder)
    change(document)
    (Path(folder) / FILE_NAME).write_text(json.dumps(document))
