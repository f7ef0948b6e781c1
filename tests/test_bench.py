"""pstn bench: it finds the benchmarks, runs them, keeps rows with their origin, and renders what was measured."""

import json
import subprocess
import sys

import pytest
from rich.console import Console

from pstn import bench
from pstn.__main__ import main

FAKE = '''"""A fake benchmark. It measures nothing."""

DEVICES = ("cpu",)
SEED = 7
COLUMNS = {"case": lambda r: r["case"], "peer": lambda r: "nobody", "bar": lambda r: "", "ratio": lambda r: f"{r['ratio']:.1f}"}


def rows(device, quick):
    import torch

    drawn = torch.rand(()).item()
    yield {"facts": {"speed": 3, "versions": {"peer": "1.2"}}, "case": device, "ratio": 2.0, "want": None, "drawn": drawn}
    yield {"case": "quick" if quick else "full", "ratio": 4.0, "want": None}
'''  # noqa: E501


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one benchmark, and a README for it."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Nothing but a package."""\n')
    (folder / "timing.py").write_text("def helper():\n    pass\n")
    (folder / "fake.py").write_text(FAKE)
    found = bench.find(tmp_path)
    monkeypatch.setattr(bench, "find", lambda root=None: found)
    monkeypatch.setattr(bench, "render", lambda: [])
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def call(capsys, *args):
    code = main(["bench", *args])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_the_benchmarks_of_this_checkout_are_found():
    found = bench.find()
    assert {"warp", "cpab", "align"} <= set(found)
    assert "timing" not in found
    assert found["warp"].devices == ("cuda", "cpu")
    assert not found["warp"].script


def test_list_says_what_each_measures(capsys):
    code, out, _ = call(capsys, "--list")
    assert code == 0
    for one in bench.find().values():
        assert one.name in out
        assert one.title in out


def test_rows_are_kept_with_their_origin(checkout, capsys):
    code, out, _ = call(capsys, "fake")
    assert code == 0
    assert "4.0 ratio" in out
    first, second = [json.loads(line) for line in (checkout / "benchmarks/results/fake.jsonl").read_text().splitlines()]
    assert first["command"] == "pstn bench fake"
    assert (first["case"], first["ratio"], first["seed"]) == ("cpu", 2.0, 7)
    for row in (first, second):
        assert {"pstn", "torch", "python", "peer"} <= set(row["versions"])
        assert row["speed"] == 3
        assert row["device"].startswith("cpu")
        assert "facts" not in row
        assert row["started"] == first["started"]
    assert second["case"] == "full"


def test_rows_are_appended_and_drawn_alike(checkout, capsys):
    for _ in range(2):
        assert call(capsys, "fake")[0] == 0
    rows = [json.loads(line) for line in (checkout / "benchmarks/results/fake.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert rows[0]["drawn"] == rows[2]["drawn"]


def test_a_quick_run_leaves_nothing_behind(checkout, capsys, monkeypatch):
    monkeypatch.setattr(bench, "render", lambda: pytest.fail("a quick run is not rendered"))
    code, out, _ = call(capsys, "--quick")
    assert code == 0
    assert "quick case" in out
    assert not (checkout / "benchmarks/results").exists()


def test_the_commit_can_be_told(checkout, capsys):
    call(capsys, "fake", "--commit", "abc")
    assert json.loads((checkout / "benchmarks/results/fake.jsonl").read_text().splitlines()[0])["commit"] == "abc"


def test_a_benchmark_that_fails_is_named_and_the_others_run(checkout, capsys):
    (checkout / "benchmarks/broken.py").write_text(
        '"""Broken."""\n\n\ndef main():\n    pass\n\n\nraise SystemExit(3)\n'
    )
    broken = bench.Benchmark(checkout / "benchmarks/broken.py", "Broken.", (), True)
    bench.find()["broken"] = broken
    code, out, _ = call(capsys, "broken", "fake")
    assert code == 1
    assert "broken failed: broken.py ended with exit status 3" in out
    assert "4.0 ratio" in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["wrap"], "there is no benchmark 'wrap'; there are align, company, convolutions, cpab"),
        (["cpab", "--quick"], "cpab has no quick run"),
        (["warp", "--device", "cuda"], "torch sees no GPU"),
    ],
)
def test_errors_say_what_to_do(capsys, monkeypatch, args, words):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = call(capsys, *args)
    assert code == 1
    assert words in err


def test_the_wrong_device_is_refused(checkout):
    with pytest.raises(bench.BenchError, match="fake runs on cpu, and this is cuda"):
        bench.choose(bench.find(), bench.Bench(("fake",)), "cuda")
    assert bench.choose(bench.find(), bench.Bench(), "cuda") == []


def test_without_a_checkout_it_says_so(capsys, monkeypatch, tmp_path):
    plain = bench.find
    monkeypatch.setattr(bench, "find", lambda: plain(tmp_path))
    code, _, err = call(capsys, "--list")
    assert code == 1
    assert "needs a checkout of the repository" in err
    with pytest.raises(bench.BenchError, match="needs a checkout"):
        bench.render(tmp_path)


def test_a_section_shows_the_last_run(checkout, capsys):
    for commit in ("older", "newer"):
        call(capsys, "fake", "--commit", commit)
        path = bench.find()["fake"].results
        path.write_text(path.read_text().replace('"started": "2', f'"started": "{commit} 2'))
    shown = bench.section(bench.find()["fake"])
    assert "newer" in shown
    assert "older" not in shown
    assert shown.count("| nobody |") == 2


def test_rendering_changes_nothing_but_what_lies_between_markers(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/render.py").write_text("def main():\n    return ['README.md']\n")
    assert bench.render(tmp_path) == ["README.md"]


def test_the_warp_benchmark_runs_quickly(tmp_path):
    """On its own too, and its rows have what the README needs."""
    out = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.warp", "--quick", "--device", "cpu", "--out", str(out)]
    subprocess.run(command, check=True, cwd=bench.ROOT, capture_output=True, timeout=60)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["case"]["S"] for row in rows} == {1, 10}
    assert all(row["error"] < 1e-4 for row in rows)
    shown = bench.find()["warp"].load().report(rows)
    assert shown.count("| torch |") == len(rows)
    assert "benchmarks.warp --device cpu --quick" in shown


def test_a_missed_bar_is_said():
    module = bench.find()["warp"].load()
    row = {"ratio": 9.9, "want": 10, "memory_ratio": 0.375, "result_ratio": 0.375}
    assert module.bar(row) == "10 (missed)"
    assert module.bar({**row, "ratio": 10.0}) == "10"
    assert module.memory(row) == "0.38 (result 0.38)"
    assert module.memory({**row, "result_ratio": 0.2}) == "0.38"


def test_the_roofline_needs_its_rows():
    module = bench.find()["warp"].load()
    facts = {"copy_bytes_per_s": 4e12, "multiply_flops_per_s": 5e13, "launch_ms": 0.002}
    rows = [
        {
            **facts,
            **module.named(case),
            "job": "forward",
            "peer": "torch",
            "ours_ms": 0.2,
            "floor_ms": 0.1,
            "over_floor": 2,
        }
        for case in module.CASES
    ]
    assert module.roofline(rows) == ""
    host = {**facts, **module.named((1, 1, 1, 8)), "job": "host", "peer": "torch", "ours_ms": 0.02, "peer_ms": 0.1}
    said = module.roofline([*rows, host])
    for words in ("4.00 TB/s", "50 TFLOP/s", "2.0 µs", "keeps the host busy for 20 µs"):
        assert words in said


def test_help_of_the_command(capsys):
    with pytest.raises(SystemExit) as left:
        main(["bench", "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    for option in ("--quick", "--device", "--list", "--render", "--commit"):
        assert option in out


def test_rows_are_shown_without_markup(checkout):
    console = Console(record=True, width=200)
    bench.measure(bench.find()["fake"], "cpu", True, "command", None, console, None)
    assert "cpu case  nobody peer  2.0 ratio" in console.export_text()
