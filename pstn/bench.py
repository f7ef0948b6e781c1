"""``pstn bench``: run the benchmarks of a checkout, append their rows to its results, render its README."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from rich.console import Console

ROOT = Path(__file__).parents[1]


class BenchError(Exception):
    """What keeps a benchmark from running."""


@dataclass(frozen=True)
class Bench:
    """Measure against peers: run the checkout's benchmarks, keep their rows, render benchmarks/README.md."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which benchmarks, as --list has them; all that run on the device by default."""
    quick: bool = False
    """Small sizes and few repeats, to see that they run: half a minute. The rows are shown and not kept."""
    device: Literal["cpu", "cuda"] | None = None
    """Where to measure; the GPU by default, where there is one."""
    list: bool = False
    """Only say which benchmarks there are."""
    render: bool = False
    """Only write what was measured before into the README."""
    commit: str | None = None
    """The commit to note down, where there is no git to ask."""


@dataclass(frozen=True)
class Benchmark:
    """A file of benchmarks/, looked at without running it.

    Arguments:
        path: The file.
        title: The first line of its docstring.
        devices: Where it runs; nothing where it does not say.
        script: Whether it runs as a program of its own; else it has ``rows``.
    """

    path: Path
    title: str
    devices: tuple[str, ...]
    script: bool

    @property
    def name(self) -> str:
        """What it is called."""
        return self.path.stem

    @property
    def results(self) -> Path:
        """Where its rows are kept."""
        return self.path.parent / "results" / f"{self.name}.jsonl"

    def load(self) -> ModuleType:
        """The file as a module."""
        root = str(self.path.parents[1])
        if root not in sys.path:
            sys.path.insert(0, root)
        return importlib.import_module(f"{self.path.parent.name}.{self.name}")


def find(root: Path = ROOT) -> dict[str, Benchmark]:
    """The benchmarks of a checkout, by name.

    Example:
        >>> find(Path("/nowhere"))
        Traceback (most recent call last):
        ...
        pstn.bench.BenchError: there is no folder /nowhere/benchmarks: pstn bench needs a checkout of the repository...
    """
    folder = root / "benchmarks"
    if not folder.is_dir():
        raise BenchError(
            f"there is no folder {folder}: pstn bench needs a checkout of the repository, installed with "
            "`pip install --editable .`; a package without it has no benchmarks"
        )
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if functions & {"rows", "main"}:
            title = (ast.get_docstring(tree) or path.stem).partition("\n")[0]
            found[path.stem] = Benchmark(path, title, _devices(tree), "rows" not in functions)
    return found


def _devices(tree: ast.Module) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEVICES":
            return tuple(ast.literal_eval(node.value))
    return ()


def run(settings: Bench, console: Console, command: str) -> int:
    """What the command does; the exit status is 1 if a benchmark failed."""
    found = find()
    if settings.list:
        for one in found.values():
            console.print(f"{one.name:10} {one.title}", highlight=False, soft_wrap=True)
        return 0
    failed = []
    if not settings.render:
        import torch

        device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device == "cuda" and not torch.cuda.is_available():
            raise BenchError("--device cuda, but torch sees no GPU here; leave it away to measure on the CPU")
        for one in choose(found, settings, device):
            console.print(f"\n[bold]{one.name}[/bold]: {one.title}", highlight=False)
            try:
                if one.script:
                    _run_script(one)
                else:
                    out = None if settings.quick else one.results
                    measure(one, device, settings.quick, command, settings.commit, console, out)
            except (BenchError, ImportError, subprocess.SubprocessError) as error:
                failed.append(one.name)
                console.print(f"[bold red]{one.name} failed:[/bold red] {error}", highlight=False, soft_wrap=True)
        if settings.quick:
            return int(bool(failed))
    for path in render():
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return int(bool(failed))


def choose(found: dict[str, Benchmark], settings: Bench, device: str) -> list[Benchmark]:
    """The benchmarks that were asked for, or else all that run on the device."""
    for name in settings.names:
        if name not in found:
            raise BenchError(f"there is no benchmark {name!r}; there are {', '.join(found)}")
        one = found[name]
        if one.devices and device not in one.devices:
            raise BenchError(f"{name} runs on {' and '.join(one.devices)}, and this is {device}: see --device")
        if one.script and settings.quick:
            raise BenchError(f"{name} has no quick run; leave --quick away, or run {one.path} by hand")
    if settings.names:
        return [found[name] for name in settings.names]
    fitting = [one for one in found.values() if not one.devices or device in one.devices]
    return [one for one in fitting if not (one.script and settings.quick)]


def measure(
    one: Benchmark, device: str, quick: bool, command: str, commit: str | None, console: Console, out: Path | None
) -> None:
    """Run a benchmark's ``rows``: show them as they come; append them with all that one needs to run them again."""
    import torch

    from pstn.train.log import environment

    module = one.load()
    seed = getattr(module, "SEED", 0)
    torch.manual_seed(seed)
    facts = {"benchmark": one.name, "command": command, "seed": seed, **environment(torch.device(device))}
    facts["commit"] = commit or facts["commit"]
    for row in module.rows(device, quick):
        more = row.pop("facts", {})
        facts = {**facts, **more, "versions": {**facts["versions"], **more.get("versions", {})}}
        cells = {heading: cell(row) for heading, cell in module.COLUMNS.items()}
        line = "  ".join(f"{text} {name}" for name, text in cells.items() if text)
        console.print(line.replace("**", ""), markup=False, highlight=False, soft_wrap=True)
        if out is not None:
            append(out, {**facts, **row})


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of JSON lines, at once: what was measured is kept if the next row fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def latest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the last run on each device.

    Example:
        >>> rows = [{"device": "cpu", "started": day, "ratio": n} for day, n in (("mon", 1), ("tue", 2), ("tue", 3))]
        >>> [row["ratio"] for row in latest(rows)]
        [2, 3]
    """
    last = {row["device"]: row.get("started") for row in rows}
    return [row for row in rows if row.get("started") == last[row["device"]]]


def section(one: Benchmark) -> str:
    """What the README shows of a benchmark with ``rows``: the last run on each device."""
    rows = latest([json.loads(line) for line in one.results.read_text(encoding="utf-8").splitlines()])
    module = one.load()
    if hasattr(module, "report"):
        return module.report(rows)
    return f"{tabulated(module.COLUMNS, rows)}\n\n{source(rows[0])}"


def tabulated(columns: Mapping[str, Callable[[Any], str]], rows: Sequence[Any]) -> str:
    """A Markdown table; the first three columns say what is measured, the others are figures.

    Example:
        >>> print(tabulated({"case": lambda r: r["case"]}, [{"case": "small"}]))
        | case |
        | :-- |
        | small |
    """
    from pstn.report.table import Column, Table

    heads = [Column(name, "left" if i < 3 else "right") for i, name in enumerate(columns)]
    return Table(heads, [[cell(row) for cell in columns.values()] for row in rows]).markdown()


def read(name: str, root: Path = ROOT) -> list[dict[str, Any]]:
    """The rows that a benchmark has kept."""
    return [json.loads(line) for line in find(root)[name].results.read_text().splitlines()]


def source(row: Mapping[str, Any]) -> str:
    """Where a row comes from: command, seed, device, versions, commit."""
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    commit = (row["commit"] or "unknown").removesuffix("-dirty")[:10]
    changed = " (changed)" if (row["commit"] or "").endswith("-dirty") else ""
    return f"<sub>`{row['command']}`, seed {row['seed']}, {row['device']}, {versions}, commit {commit}{changed}</sub>"


def render(root: Path = ROOT) -> list[Path]:
    """Write the results into the READMEs; returns those that changed."""
    script = root / "docs" / "render.py"
    if not script.exists():
        raise BenchError(f"there is no {script}: pstn bench needs a checkout of the repository")
    spec = importlib.util.spec_from_file_location("pstn_docs_render", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main()


def _run_script(one: Benchmark) -> None:
    """A benchmark without ``rows`` prints and records by itself."""
    command = [sys.executable, str(one.path), "--out", str(one.results)]
    done = subprocess.run(command, cwd=one.path.parents[1], check=False)
    if done.returncode:
        raise BenchError(f"{one.path.name} ended with exit status {done.returncode}")


def script(file: str) -> None:
    """The program that a file of benchmarks/ is: its own rows, to a file or only to the terminal."""
    import argparse

    from rich.console import Console

    one = find(Path(file).parents[1])[Path(file).stem]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{one.name}", description=one.title)
    parser.add_argument("--out", type=Path, help="append a JSON line a row to this file")
    parser.add_argument("--device", choices=one.devices, default=one.devices[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats, to see that it runs")
    parser.add_argument("--commit", help="the commit, where there is no git to ask")
    given = parser.parse_args()
    command = f"{parser.prog} --device {given.device}{' --quick' if given.quick else ''}"
    measure(one, given.device, given.quick, command, given.commit, Console(width=200), given.out)
