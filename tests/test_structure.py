"""The house rules that a machine can check: which way imports point, what the core imports, the changelog."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pstn

ROOT = Path(pstn.__file__).parent
#: Who may import whom: a module imports from its own row and the rows above, never from below.
LAYERS = [
    ["_version", "grid", "tabled"],
    ["families", "distributions"],
    ["warp", "kernels"],
    ["labels", "posterior", "placement", "modes"],
    ["stn", "nets"],
    ["objectives", "inference", "metrics", "pose", "colocalise", "uncertainty", "wrap", "export"],
    ["data"],
    ["train", "align", "vae"],
    ["recipe"],
    ["report", "testing", "estimators"],
    ["demo", "experiment", "bench", "apply", "serve"],
    ["__main__"],
]
CORE = {"torch", "numpy", "jaxtyping", "pstn", *sys.stdlib_module_names}
LAZY = {"kernels": {"triton"}, "families": {"numba"}}
ROW = {name: i for i, row in enumerate(LAYERS) for name in row}


def room(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imports(path, everywhere=True):
    """(line, module) of every import; only those that run at import time if not everywhere."""
    tree = ast.parse(path.read_text())
    inside = set()
    for node in ast.walk(tree):
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if (late and not everywhere) or typing:
            inside |= {id(n) for n in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module
            if node.module == "pstn":
                yield from ((node.lineno, f"pstn.{alias.name}") for alias in node.names if alias.name in ROW)


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def test_every_module_has_a_place():
    assert {room(p) for p in FILES} <= set(ROW), {room(p) for p in FILES} - set(ROW)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    for line, module in imports(path):
        if module and module.startswith("pstn."):
            target = module.split(".")[1]
            assert ROW[target] <= ROW[room(path)], f"{path}:{line} imports {module}, which stands below it"


@pytest.mark.parametrize(
    "path", [p for p in FILES if ROW[room(p)] <= ROW["inference"]], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_core_imports_torch_numpy_and_jaxtyping_only(path):
    # modules of kernels are themselves imported when the first kernel runs; the last test but one sees to it
    allowed = CORE | LAZY.get(room(path), set())
    for line, module in imports(path, everywhere=False):
        assert module.split(".")[0] in allowed, f"{path}:{line} imports {module} at import time"


def test_files_stay_short():
    long = {str(p): n for p in FILES if (n := len(p.read_text().splitlines())) > 450}
    assert not long, long


def test_no_helper_of_tests_has_the_name_of_a_folder_that_commands_make():
    """ruff takes such a folder for the module, and sorts imports another way once `make demo` has made it."""
    ignored = (ROOT.parent / ".gitignore").read_text().split()
    made = {"models", *(line.strip("/") for line in ignored if line.startswith("/"))}
    helpers = {p.stem for p in Path(__file__).parent.rglob("*.py")}
    assert {"runs", "report"} <= made
    assert not helpers & made


def test_the_newest_changelog_entry_is_the_version():
    text = (ROOT.parent / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[(\d[^\]]*)\]", text, re.MULTILINE).group(1) == pstn.__version__


def test_importing_is_quick_and_takes_no_optional_package():
    code = """
import sys, time, torch
start = time.perf_counter()
from pstn import STN, Similarity, StudentT, elbo, predict, warp
assert time.perf_counter() - start < 2, time.perf_counter() - start
heavy = {"lightning_fabric", "tyro", "matplotlib", "PIL", "onnx", "sklearn", "triton", "numba", "ray"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_exist():
    assert all(hasattr(pstn, name) for name in pstn.__all__)
    assert set(pstn.__all__) <= set(dir(pstn))
    with pytest.raises(AttributeError, match="has no attribute 'STM'"):
        pstn.STM


def test_public_names_are_listed_once_for_readers_and_once_for_the_interpreter():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (typing,) = (node for node in tree.body if isinstance(node, ast.If))
    shown = {alias.name: node.module for node in typing.body for alias in node.names}
    assert shown.pop("nets") == "pstn"
    assert shown == {name: f"pstn.{home}" for name, home in pstn._HOME.items()}
    assert set(shown) | {"nets", "__version__"} == set(pstn.__all__)


@pytest.mark.parametrize("name", ["export", "warp", "wrap"])
def test_a_function_is_not_hidden_by_the_module_of_its_name(name):
    code = f"import pstn.{name}, pstn; from pstn import {name}; assert callable({name}) and {name} is pstn.{name}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_is_imported_when_it_is_needed():
    code = (
        "import sys, pstn, pstn.__main__; assert 'torch' not in sys.modules; pstn.warp; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
