"""Prints the requirements of this project with the named extras: `python deploy/requirements.py models`.

For image builds, which install the dependencies in a layer of their own, before any code is copied.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """What `pip install '.[extras]'` would install besides the project itself. KeyError for an unknown extra."""
    with pyproject.open("rb") as file:
        project = tomllib.load(file)["project"]
    chosen = [project["optional-dependencies"][extra] for extra in extras]
    return [*project["dependencies"], *(requirement for extra in chosen for requirement in extra)]


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])))
