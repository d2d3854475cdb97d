"""Print every dependency of the package, of its extras and of its tests at its lower bound, as pip
constraints."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
names = ("analysis", "cluster", "convert", "meshes", "precomputed", "remote", "zarr", "test")
for requirement in project["dependencies"] + [one for name in names for one in extras[name]]:
    name, version = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", requirement).groups()
    print(f"{name}=={version}")
