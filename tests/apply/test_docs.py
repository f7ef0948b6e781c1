"""The documentation tells the truth: its code runs, its links lead somewhere, every tutorial has a page."""

import importlib.util
import math
import re
from pathlib import Path

import pytest
import torch

from pstn import TPS, Affine, Projective, Rotation, warp

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TUTORIALS = sorted(path for path in (DOCS / "tutorials").glob("*.py") if path.name != "conftest.py")


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(page)), str(page), "exec"), {})


@pytest.fixture(scope="module")
def coming():
    """What the page for people from other libraries defines, on an image without sharp edges."""
    made = {}
    exec("\n".join(blocks(DOCS / "coming_from.md")[:4]), made)
    generator = torch.Generator().manual_seed(0)
    made["x"] = torch.nn.functional.avg_pool2d(torch.rand(2, 3, 24, 32, generator=generator), 3, 1, 1)
    return made


MATRIX = torch.tensor([[1.1, 0.2, 3.0], [-0.1, 0.9, 2.0], [0.004, -0.002, 1.0]]).expand(2, 3, 3)


def test_kornia_rotates_as_the_page_says(coming):
    import kornia

    square = coming["x"][..., :24]
    ours = coming["warp"](square, Rotation(), torch.full((2, 1), torch.pi / 6))
    assert torch.allclose(kornia.geometry.rotate(square, torch.tensor([30.0, 30.0])), ours, atol=1e-4)


@pytest.mark.parametrize(("theirs", "ours"), [("zeros", "fill"), ("border", "border"), ("reflection", "reflect")])
def test_kornia_warps_as_the_page_says(coming, theirs, ours):
    import kornia

    x, matrix = coming["x"], MATRIX[:, :2]
    options = {"padding_mode": theirs, "align_corners": False}
    normalised = coming["from_pixel_matrix"](matrix, (24, 32))
    there = kornia.geometry.warp_affine(x, matrix, (24, 32), **options)
    here = warp(x, Affine(), Affine().from_matrix(normalised), padding=ours)
    assert torch.allclose(there, here, atol=1e-4)
    there = kornia.geometry.warp_perspective(x, MATRIX, (24, 32), **options)
    normalised = coming["from_pixel_matrix"](MATRIX, (24, 32))
    assert torch.allclose(there, warp(x, Projective(), Projective().from_matrix(normalised), padding=ours), atol=1e-4)


def test_splines_of_kornia_agree_at_the_control_points():
    from kornia.geometry.transform import get_tps_transform, warp_points_tps

    family = TPS(4)
    source, theta = family.control.float().expand(2, 16, 2), 0.1 * torch.randn(2, family.dim)
    target = source + theta.unflatten(1, (16, 2))
    there = warp_points_tps(source, target, *get_tps_transform(source, target))
    assert torch.allclose(there, target, atol=1e-5)
    assert torch.allclose(family(theta, source[0]), target, atol=1e-5)


def test_torchvision_moves_as_the_page_says(coming):
    """Its documented map, in pixels: turned clockwise and scaled about the middle, then shifted."""
    x, size = coming["x"], (24, 32)
    angle, (right, down), scale = 20.0, (3.0, -2.0), 1.3
    c, s = scale * math.cos(math.radians(angle)), scale * math.sin(math.radians(angle))
    middle = torch.tensor([15.5, 11.5])
    linear = torch.tensor([[c, -s], [s, c]])  # y points down: this is clockwise
    shift = middle - linear @ middle + torch.tensor([right, down])
    matrix = torch.cat([linear, shift[:, None]], dim=1).expand(2, 2, 3)
    expected = warp(x, Affine(), Affine().from_matrix(coming["from_pixel_matrix"](matrix, size)))
    theta = coming["from_torchvision"](angle, (right, down), scale, size).expand(2, -1)
    assert torch.allclose(warp(x, Affine(size=size), theta), expected, atol=1e-4)


def test_torchvision_itself(coming):
    functional = pytest.importorskip(
        "torchvision.transforms.functional", reason="torchvision is not installed", exc_type=ImportError
    )
    x, linear = coming["x"], functional.InterpolationMode.BILINEAR
    there = functional.affine(x, 20.0, [3, -2], 1.3, [0.0, 0.0], interpolation=linear)
    theta = coming["from_torchvision"](20.0, (3, -2), 1.3, (24, 32)).expand(2, -1)
    assert torch.allclose(there, warp(x, Affine(size=(24, 32)), theta), atol=1e-4)
    square = x[..., :24]
    turned = warp(square, Rotation(), torch.full((2, 1), math.radians(30)))
    assert torch.allclose(functional.rotate(square, 30, interpolation=linear), turned, atol=1e-4)


@pytest.mark.parametrize("page", [*PAGES, *(DOCS / "tutorials").glob("*.md")], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    for target in re.findall(r"(?m)^([\w/]+)$", "\n".join(re.findall(r"```{toctree}.*?```", text, re.DOTALL))):
        assert (DOCS / f"{target}.md").exists(), target


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_every_tutorial_has_a_page(script):
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    stub = [(DOCS / "tutorials" / f"{script.stem}.md").read_text()]
    conf.replace_tutorials(None, script.stem, stub)
    page = stub[0]
    assert page.startswith("# ")
    assert f"tutorials/{script.stem}" in (DOCS / "index.md").read_text()
    assert page.count("```") % 2 == 0
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    compile(code, script.name, "exec")
    lines = [line for line in script.read_text().split('"""', 2)[2].splitlines() if line and not line.startswith("#")]
    assert [line for line in code.splitlines() if line and not line.startswith("#")] == lines, "no line is lost"
