"""The package's modules stand on each other without a circle, imports within functions and for types among them."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import trunkline_worker

ROOT = Path(trunkline_worker.__file__).parent


def modules():
    """Returns the path of each module by its name, in parts."""
    found = {path.relative_to(ROOT.parent).with_suffix("").parts: path for path in ROOT.rglob("*.py")}
    return {name[:-1] if name[-1] == "__init__" else name: path for name, path in found.items()}


def imports(name, path, known):
    """Yields the modules of the package that a module imports."""
    package = name if path.name == "__init__.py" else name[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (wanted for alias in node.names if (wanted := tuple(alias.name.split("."))) in known)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                wanted = next((at for at in ((*base, alias.name), base) if at in known), None)
                if wanted is not None:
                    yield wanted


def test_no_module_stands_on_itself():
    known = modules()
    graph = {name: set(imports(name, path, known)) for name, path in known.items()}
    assert ("trunkline_worker", "facts") in graph["trunkline_worker", "slots"], "imports are found"
    # Raises a CycleError that names the circle.
    TopologicalSorter(graph).prepare()
