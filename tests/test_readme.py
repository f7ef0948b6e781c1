"""README tells the truth: its code runs, its links and files exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_code_runs(capsys, monkeypatch, tmp_path):
    """From top to bottom, as somebody would who reads it."""
    monkeypatch.chdir(tmp_path)
    code = "".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    short = code.replace("range(200)", "range(30)").replace("epochs=20", "epochs=2")
    assert short.count("range(30)") == short.count("epochs=2,") == 1
    made = {}
    exec(compile(short, "README.md", "exec"), made)
    assert float(re.search(r"tensor\((.*)\)", capsys.readouterr().out).group(1)) > 0.5
    assert [run.steps for run in made["runs"]] == [26] * 4
    assert (tmp_path / "runs" / "few" / "003" / "model.safetensors").exists()


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_figures_come_from_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from render import FILES, rendered

    for path in FILES:
        assert rendered(path.read_text()) == path.read_text(), f"{path}: run python docs/render.py"
