"""What is installed: the wheel holds the package and nothing else, and every extra is tried by ``make extras``."""

import inspect
import re
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import extras
import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(extras.build(tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    tree = {path for path in (ROOT / "pstn").rglob("*") if path.is_file() and path.parent.name != "__pycache__"}
    files = {name for name in wheel.namelist() if not name.endswith("/")}
    info = {name for name in files if re.match(r"pstn-[\w.+]+\.dist-info/", name)}
    assert files - info == {str(path.relative_to(ROOT)) for path in tree}
    assert {"pstn/py.typed", "pstn/serve/page.html", "pstn/serve/page.js"} <= files
    assert {name.partition("/")[2] for name in info} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"),
    }


def test_the_wheel_says_what_it_is(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    about = Parser().parsestr(wheel.read(name).decode())
    assert about["License-Expression"] == "MIT"
    assert set(about.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    (points,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    assert b"pstn = pstn.__main__:main" in wheel.read(points)


def test_every_extra_has_a_use():
    assert all(inspect.isfunction(getattr(extras, name, None)) for name in extras.names())
    assert extras.names() == ["alone", *PROJECT["optional-dependencies"]]


def test_what_the_code_asks_to_install_exists():
    asked = {
        name
        for path in (*(ROOT / "pstn").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md")
        for found in re.findall(r"pip install '?pstn\[([\w,]+)\]", path.read_text())
        for name in found.split(",")
    }
    assert {"apply", "hub", "onnx", "serve"} <= asked
    assert asked <= set(PROJECT["optional-dependencies"])
