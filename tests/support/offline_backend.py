"""A build backend that reads `[project]` and packs no files: its wheel has only dependencies, extras and commands."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path


def build_editable(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    metadata = [f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    for extra, requirements in project["optional-dependencies"].items():
        metadata.append(f"Provides-Extra: {extra}")
        metadata += [f"Requires-Dist: {_of_extra(requirement, extra)}" for requirement in requirements]
    commands = "".join(f"{name} = {target}\n" for name, target in project["scripts"].items())
    contents = {
        "METADATA": "\n".join(metadata) + "\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": f"[console_scripts]\n{commands}",
    }
    with zipfile.ZipFile(Path(wheel_directory) / f"{stem}-py3-none-any.whl", "w") as wheel:
        for name, text in contents.items():
            wheel.writestr(f"{stem}.dist-info/{name}", text)
        wheel.writestr(f"{stem}.dist-info/RECORD", "".join(f"{stem}.dist-info/{name},,\n" for name in contents))
    return f"{stem}-py3-none-any.whl"


def _of_extra(requirement: str, extra: str) -> str:
    name, _, marker = requirement.partition(";")
    return f'{name}; ({marker}) and extra == "{extra}"' if marker else f'{name}; extra == "{extra}"'
