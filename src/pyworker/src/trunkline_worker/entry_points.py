"""Engines by name: those that installed packages declare as entry points of the group `trunkline_worker.engines`."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from . import install
from .engine import Engine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GROUP = "trunkline_worker.engines"
OWN = "trunkline-worker"
"""Name of this package for pip."""


def installed() -> dict[str, list[metadata.EntryPoint]]:
    """Returns the entry points of each name, by name: more than one if several packages have an engine of that name."""
    own = _of_checkout()
    # A checkout may run with another version of the package installed.
    others = [point for point in metadata.entry_points(group=GROUP) if not own or _package(point) != OWN]
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in sorted([*own, *others], key=lambda point: (point.name, _package(point))):
        found.setdefault(point.name, []).append(point)
    return found


def _of_checkout(file: Path = Path(__file__).parents[2] / "pyproject.toml") -> list[metadata.EntryPoint]:
    """Returns the entry points of this package where it runs from its folder, without pip."""
    project = tomllib.loads(file.read_text()).get("project", {}) if file.is_file() else {}
    if project.get("name") != OWN:
        return []
    return [metadata.EntryPoint(name, value, GROUP) for name, value in project["entry-points"][GROUP].items()]


def load(name: str) -> type[Engine]:
    """Returns the class of an engine.

    Raises:
        ValueError: no package has an engine of that name, or more than one.
        ImportError: its module cannot be imported, or has no such class.
    """
    point = _only(name)
    try:
        found = point.load()
    except Exception as error:
        raise failed(name, error) from error
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise ImportError(f"--engine {name}: {_origin(point)} is not a class derived from trunkline_worker.Engine")
    return found


def _only(name: str) -> metadata.EntryPoint:
    points = installed()
    if name not in points:
        raise ValueError(f"--engine {name}: no such engine is installed; choose from {', '.join(points)}")
    if len(points[name]) > 1:
        packages = " and ".join(map(_package, points[name]))
        raise ValueError(f"--engine {name}: {packages} have an engine of that name; uninstall all but one")
    return points[name][0]


def failed(name: str, error: Exception) -> ImportError:
    """Returns what to say when an engine cannot be imported: which package it lacks, and the command that installs it."""
    point = _only(name)
    if not isinstance(error, ModuleNotFoundError):
        return ImportError(f"--engine {name}: {_origin(point)} cannot be imported: {type(error).__name__}: {error}")
    package, extra = _package(point), next(iter(point.extras), None)
    how = install.command(extra) if extra and package == OWN else f"pip install '{package}[{extra}]'" if extra else ""
    return ImportError(
        f"--engine {name} needs {error.name or error}, which is not installed" + (f": {how}" if how else f" ({package})")
    )


def _package(point: metadata.EntryPoint) -> str:
    """Returns the name of the package that an entry point comes from."""
    dist = getattr(point, "dist", None)
    return dist.metadata["Name"] if dist else OWN


def _origin(point: metadata.EntryPoint) -> str:
    return f"{point.value.partition('[')[0].strip()} of {_package(point)}"
