"""The documentation tells the truth: its code runs, its links lead somewhere, every tutorial has a page."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TUTORIALS = sorted(path for path in (DOCS / "tutorials").glob("*.py") if path.name != "conftest.py")


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(page)), str(page), "exec"), {})


def test_kornia_is_as_the_page_says():
    import kornia

    made = {}
    exec("\n".join(blocks(DOCS / "coming_from.md")[:3]), made)
    x = made["x"]
    ours = made["warp"](x, made["Rotation"](), torch.full((2, 1), torch.pi / 6))
    assert torch.allclose(kornia.geometry.rotate(x, torch.tensor([30.0, 30.0])), ours, atol=1e-4)
    matrix = torch.tensor([[1.1, 0.2, 3.0], [-0.1, 0.9, 2.0]]).expand(2, 2, 3)
    family = made["Affine"]()
    ours = made["warp"](x, family, family.from_matrix(made["from_pixel_matrix"](matrix, (32, 32))))
    assert torch.allclose(kornia.geometry.warp_affine(x, matrix, (32, 32)), ours, atol=1e-4)


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
