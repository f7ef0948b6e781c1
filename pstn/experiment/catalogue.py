"""Finding tables: every file ``experiments/<paper>/<table>.py`` that has a ``TABLE``."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from pstn.experiment.table import Table


class MissingTable(LookupError):
    """There is no such table or row, or no folder of tables."""


def experiments(root: Path | None = None) -> Path:
    """The folder of experiments: the given one, that of the library's checkout, or that of the current folder."""
    places = [root] if root is not None else [Path(__file__).parents[2] / "experiments", Path("experiments").absolute()]
    for place in places:
        if place.is_dir():
            return place
    looked = " or ".join(str(place) for place in places)
    raise MissingTable(
        f"there is no folder of experiments: looked for {looked}. It is part of the repository, not of the installed "
        "package: run this in a checkout, or give --experiments"
    )


def names(root: Path | None = None) -> list[str]:
    """The ids of all tables, sorted."""
    folder = experiments(root)
    files = folder.glob("[!.]*/[!.]*.py")  # not what editors and notebooks keep out of sight
    return sorted(f"{path.parent.name}/{path.stem}" for path in files if path.stem != "__init__")


def find(id: str, root: Path | None = None) -> Table:
    """The table of an id, ``"<paper>/<table>"``."""
    folder = experiments(root).resolve()
    path = folder / f"{id}.py"
    if id.count("/") != 1 or not path.is_file():
        raise MissingTable(f"there is no table {id!r}; there are {', '.join(names(folder)) or 'none'}")
    return _read(id, path, folder)


@cache
def _read(id: str, path: Path, folder: Path) -> Table:
    # Files of one folder may share code: `from experiments.mnist import ...`.
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))
    spec = importlib.util.spec_from_file_location(f"{folder.name}.{id.replace('/', '.')}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    table = getattr(module, "TABLE", None)
    if not isinstance(table, Table) or table.id != id:
        found = f"the table {table.id!r}" if isinstance(table, Table) else f"{type(table).__name__}"
        raise MissingTable(f"{path} has {found} as TABLE; expected a Table of id {id!r}")
    return replace(table, source=folder)
