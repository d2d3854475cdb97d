"""Print every dependency of the package, of its formats and of its tests at its lower bound, as pip constraints."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for requirement in project["dependencies"] + extras["analysis"] + extras["convert"] + extras["test"]:
    name, version = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)", requirement).groups()
    print(f"{name}=={version}")
