"""The demonstration: from the command to the page, and what happens when it is stopped half way."""

import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from pstn.demo import Demo
from pstn.demo.command import run
from pstn.demo.fleet import Fleet, muster
from pstn.demo.job import Job
from pstn.demo.models import KINDS, NORMALISE, augmentation, build, parts
from pstn.demo.results import SCORES, pick, table, verdict
from pstn.distributions import draw

SMALL = ["--quick", "--steps", "40", "--workers", "2"]


def command(folder, *more):
    return [
        *(sys.executable, "-m", "pstn", "demo", *SMALL, "--output", str(folder / "report")),
        *("--runs", str(folder / "runs"), *more),
    ]


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """A demonstration that ran from beginning to end: its folder, what it printed, its results.

    One for all of pytest's processes: the first that asks runs it, and others wait.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "demo"
    folder.mkdir(exist_ok=True)
    printed, picture = folder / "printed.txt", folder / "new" / "picture.png"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not printed.exists():
            ran = subprocess.run(
                command(folder, "--picture", str(picture)), capture_output=True, text=True, timeout=240
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
            printed.write_text(ran.stdout)
    return folder, printed.read_text(), json.loads((folder / "report" / "results.json").read_text())


class Page(HTMLParser):
    """The addresses, tags and table cells of a page."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.tags, self.cells, self.inside = [], set(), [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "srcset", "href")]
        if tag == "td":
            self.cells.append("")
        self.inside = self.inside or tag == "td"

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "td"

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


def test_the_table_is_the_results(done):
    folder, printed, results = done
    cells = Page((folder / "report" / "index.html").read_text(encoding="utf-8")).cells
    for name, model in results["models"].items():
        assert [row["seed"] for row in model["seeds"]] == [0, 1]
        line = next(line for line in printed.splitlines() if line.strip().startswith(f"{KINDS[name].label}  "))
        for score, _, factor, digits, _ in SCORES:
            values = torch.tensor([row[score] for row in model["seeds"]], dtype=torch.float64)
            assert model["mean"][score] == pytest.approx(float(values.mean()))
            assert model["deviation"][score] == pytest.approx(float(values.std()))
            mean = statistics.fmean(factor * row[score] for row in model["seeds"])  # ties round by the last digit
            shown = f"{mean:.{digits}f} ± {factor * float(values.std()):.{digits}f}"
            assert shown in line
            assert shown in cells


def test_it_says_who_beats_whom_and_where_the_report_is(done):
    folder, printed, results = done
    for sentence in verdict(results):
        assert f"{sentence}\n" in printed
    assert f"report: {folder / 'report' / 'index.html'} (" in printed
    assert f"picture: {folder / 'new' / 'picture.png'}\n" in printed


def test_the_papers_figures_are_beside_ours(done):
    _, printed, results = done
    for name, accuracy, ece in (("CNN", 87.3, 0.074), ("STN", 82.2, 0.116), ("P-STN", 92.7, 0.057)):
        line = next(line for line in printed.splitlines() if line.strip().startswith(f"{name}  "))
        assert f"{accuracy} ±" in line
        assert f"{ece} ±" in line
    assert results["models"]["augment"]["paper"] == {}


def test_scores_are_those_of_the_kept_predictions(done):
    folder, _, results = done
    demo = Demo(quick=True, steps=40, runs=folder / "runs").resolved()
    y = parts(demo).test.y
    for name, model in results["models"].items():
        for row in model["seeds"]:
            probs, entropy, scores = Job(demo, name, row["seed"], model["picked"]).predictions()
            assert (probs.argmax(-1) == y).double().mean().item() == pytest.approx(row["accuracy"])
            assert -probs.gather(1, y[:, None]).log().mean().item() == pytest.approx(row["nll"], rel=1e-4)
            assert scores["ece"] == row["ece"]
            assert entropy.shape == y.shape


def test_what_was_picked_is_the_least_validation_nll(done):
    for name in ("augment", "pstn"):
        model = done[2]["models"][name]
        scores = {row["value"]: row["validation"][0]["nll"] for row in model["tried"]}
        assert len(scores) == 2
        assert model["picked"] == min(scores, key=scores.get)


def test_networks_have_the_papers_sizes(done):
    sizes = {name: model["parameters"] for name, model in done[2]["models"].items()}
    assert sizes == {"cnn": 28086, "augment": 28086, "stn": 28726, "pstn": 26662, "learned": 27578}


def test_the_page_stands_alone(done):
    html = (done[0] / "report" / "index.html").read_text(encoding="utf-8")
    page = Page(html)
    assert len(page.addresses) == 2 * 6
    assert all(address.startswith("data:") for address in page.addresses)
    assert not {"script", "link", "iframe"} & page.tags
    for words in ("posteriors", "Is 80 %", "What it considers", "Training", "picked", "Settings", "quick slice"):
        assert words in html
    assert len(html) < 3e6


def test_results_say_where_they_are_from(done):
    results = done[2]
    assert results["command"].startswith("pstn demo --quick --steps 40")
    assert results["environment"]["versions"]["torch"] == torch.__version__
    assert results["settings"]["steps"] == 40
    assert results["seconds"]["computing"] > 0


def test_the_picture_is_small(done):
    picture = done[0] / "new" / "picture.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 150_000


def figures(results):
    """Results without what depends on the clock."""
    return {
        name: [{k: v for k, v in row.items() if k != "seconds"} for row in model["seeds"]]
        for name, model in results["models"].items()
    }


def test_stopped_and_started_again_it_ends_the_same(done, tmp_path):
    process = subprocess.Popen(command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "runs").glob("*/result.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "run the same command again" in errors
    assert f"--runs {tmp_path / 'runs'}" in errors
    assert not (tmp_path / "report" / "index.html").exists()

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/result.json")}
    assert 0 < len(kept) < 12
    ran = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "finished networks are not trained again"
    assert ran.stdout.count("trained ") == 12 - len(kept)
    assert figures(json.loads((tmp_path / "report" / "results.json").read_text())) == figures(done[2])


def small_fleet(runs):
    demo = Demo(quick=True, steps=40, runs=runs).resolved()
    return Fleet(tuple(Job(demo, "cnn", seed) for seed in range(2)))


def scores(fleet):
    return [job.result()["validation"] for job in fleet.jobs]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A fleet that nothing stopped."""
    fleet = small_fleet(tmp_path_factory.mktemp("fleet"))
    fleet.train()
    return fleet


def test_a_fleet_leaves_its_networks_and_nothing_else(whole):
    assert not whole.folder.exists()
    assert whole.untrained == ()
    for job in whole.jobs:
        assert {path.name for path in job.folder.iterdir()} == {"model.safetensors", "log.jsonl", "result.json"}
        assert [record["step"] for record in job.result()["history"]] == [13, 26, 39, 40]


def test_a_stopped_fleet_goes_on_from_where_it_was(whole, tmp_path):
    fleet, steps = small_fleet(tmp_path), []

    def stop(step):
        steps.append(step)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        fleet.train(stop)
    assert len(fleet.untrained) == 2
    fleet.train(steps.append)
    assert steps == [13, 26, 39, 40]
    assert scores(fleet) == scores(whole)


def test_a_fleet_stopped_while_its_networks_are_kept_is_found_again(whole, tmp_path, monkeypatch):
    fleet, keep = small_fleet(tmp_path), Job.keep

    def killed(job, run):
        if job.seed == 1:
            raise KeyboardInterrupt
        keep(job, run)

    monkeypatch.setattr(Job, "keep", killed)
    with pytest.raises(KeyboardInterrupt):
        fleet.train()
    monkeypatch.setattr(Job, "keep", keep)
    assert [job.seed for job in fleet.untrained] == [1]
    (again,) = muster(fleet.jobs, 1)
    steps = []
    again.train(steps.append)
    assert steps == []
    assert scores(fleet) == scores(whole)
    assert muster(fleet.jobs, 1) == []


def test_a_network_that_diverges_is_named(tmp_path):
    jobs = small_fleet(tmp_path).jobs
    wild = Fleet(tuple(replace(job, demo=replace(job.demo, lr=1e20)) for job in jobs))
    with pytest.raises(FloatingPointError, match="CNN, seed 0: the loss became NaN or infinite"):
        wild.train()


@pytest.mark.parametrize("workers", [1, 2, 3, 16, 100])
def test_every_network_is_in_one_fleet_of_its_kind(workers, tmp_path):
    demo = Demo(runs=tmp_path)
    jobs = [Job(demo, kind, seed) for kind in ("cnn", "stn") for seed in range(5)]
    jobs += [Job(demo, "pstn", seed, value) for value in demo.kl_weights for seed in range(2)]
    fleets = muster(jobs, workers)
    assert sorted(map(jobs.index, (job for fleet in fleets for job in fleet.jobs))) == list(range(len(jobs)))
    for kind in ("cnn", "stn", "pstn"):
        sizes = [len(fleet.jobs) for fleet in fleets if fleet.jobs[0].kind == kind]
        assert max(sizes) - min(sizes) <= 1
    assert all(len({job.kind for job in fleet.jobs}) == 1 for fleet in fleets)
    assert [fleet.cost for fleet in fleets] == sorted((fleet.cost for fleet in fleets), reverse=True)
    assert len(fleets) == {1: 3, 100: 18}.get(workers, len(fleets))


def test_trained_networks_are_in_no_fleet(whole):
    demo = whole.jobs[0].demo
    more = Job(demo, "stn", 0)
    assert muster([*whole.jobs, more], 2) == [Fleet((more,))]


def test_the_folder_says_who_is_in_a_fleet(tmp_path):
    jobs = small_fleet(tmp_path).jobs
    fleets = [Fleet(jobs), Fleet(jobs[:1]), Fleet(jobs[1:]), Fleet(jobs[::-1])]
    assert len({fleet.folder for fleet in fleets}) == len(fleets)


def test_a_finished_demonstration_trains_nothing(done, tmp_path):
    original, _, results = done
    folder = shutil.copytree(original, tmp_path / "demo")
    ran = subprocess.run(command(folder), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "trained" not in ran.stdout
    assert figures(json.loads((folder / "report" / "results.json").read_text())) == figures(results)


@pytest.mark.parametrize("seed", [0, 3])
def test_no_two_parts_share_a_digit_and_all_are_balanced(seed):
    demo = Demo(seed=seed)
    train, validation, test = parts(demo)
    everything = [*train, validation, test]
    assert [len(part) for part in everything] == [100] * 5 + [1000] * 2
    assert all(len(set(part.counts)) == 1 for part in everything)
    pixels = torch.cat([part.x.flatten(1) for part in everything])
    assert len(pixels.unique(dim=0)) == len(pixels)


def test_another_seed_gives_other_digits():
    first, second = (parts(Demo(seed=seed)).test.x for seed in (0, 1))
    assert not torch.equal(first, second)


def test_all_kinds_are_trained_alike():
    demo = Demo()
    configs = [Job(demo, kind, 1, 3e-4 if KINDS[kind].tuned else None).config for kind in KINDS]
    assert len({replace(config, kl_weight=0.0, kl_per="dimension", samples=1) for config in configs}) == 1
    assert [config.kl_weight for config in configs] == [0, 0, 0, 3e-4, 9]
    assert [config.kl_per for config in configs] == ["dimension"] * 4 + ["dataset"]
    assert [config.samples for config in configs] == [1] * 4 + [4]


def test_a_warp_outside_the_digit_is_background():
    x = parts(Demo()).test.x[:2]
    far = torch.tensor([[0.0, 0.0, 5.0, 0.0]])
    background = NORMALISE.fill
    for model in (build("stn"), build("pstn")):
        with torch.no_grad():
            model.transformers[0].head.loc[-1].bias.copy_(far[0])
            assert model(x, samples=0).warped.unique().tolist() == pytest.approx([background])
    augment = augmentation(1e-9)
    assert augment(x).sub(x).abs().max() < 1e-4
    assert augment.options["fill"] == pytest.approx(background)


def test_networks_start_at_the_identity_with_the_papers_spread():
    with torch.no_grad():
        q = build("pstn")(parts(Demo()).test.x[:3], samples=0).posterior
    assert not q.loc.any()
    assert draw(q, 3).shape == (3, 3, 4)
    assert q.scale.unique().tolist() == pytest.approx([0.0820], abs=1e-4)


def test_other_settings_have_another_folder():
    one = Job(Demo(), "pstn", 0, 1e-4)
    others = [
        Job(Demo(steps=10), "pstn", 0, 1e-4),
        Job(Demo(seed=1), "pstn", 0, 1e-4),
        Job(Demo(test=500), "pstn", 0, 1e-4),
        Job(Demo(), "pstn", 1, 1e-4),
        Job(Demo(), "pstn", 0, 3e-4),
        Job(Demo(), "stn", 0),
    ]
    assert len({job.folder for job in [one, *others]}) == 1 + len(others)
    assert one.folder == Job(Demo(workers=7, output=Path("elsewhere"), seeds=3), "pstn", 0, 1e-4).folder


def test_pick_takes_the_least_mean(tmp_path):
    demo = Demo(runs=tmp_path)
    for seed, value, nll in ((0, 1e-4, 0.1), (1, 1e-4, 0.9), (0, 1e-3, 0.4), (1, 1e-3, 0.4)):
        job = Job(demo, "pstn", seed, value)
        job.folder.mkdir()
        (job.folder / "result.json").write_text(json.dumps({"validation": {"nll": nll}}))
    jobs = [Job(demo, "pstn", seed, value) for value in (1e-4, 1e-3) for seed in (0, 1)]
    assert pick(jobs) == 1e-3
    assert pick([Job(demo, "cnn", 0)]) is None


def test_the_verdict_does_not_flatter(done):
    results = json.loads(json.dumps(done[2]))
    for name, model in results["models"].items():
        model["mean"] = {"accuracy": 0.9, "nll": 0.2, "ece": 0.05}
        if name == "augment":
            model["mean"] = {"accuracy": 0.95, "nll": 0.1, "ece": 0.06}
    words = "is better in ECE, worse in accuracy and NLL."
    assert verdict(results) == [
        "Against CNN, P-STN is equal in accuracy, NLL and ECE.",
        "Against STN, P-STN is equal in accuracy, NLL and ECE.",
        f"Against CNN + augmentation, P-STN {words}",
        f"Against CNN + augmentation, P-STN, learned spread {words}",
    ]


def test_one_seed_has_a_table_too(done):
    results = json.loads(json.dumps(done[2]))
    results["settings"]["seeds"] = 1
    for model in results["models"].values():
        model["seeds"] = model["seeds"][:1]
    shown = table(results)
    assert shown.title.endswith("one seed")
    assert not re.search(r"nan", shown.markdown())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": 7}, "train is 7; expected a multiple of 10"),
        ({"test": 0}, "test is 0; expected a multiple of 10"),
        ({"seeds": 0}, "seeds is 0; expected 1 or more"),
        ({"test": 3000, "validation": 2000}, "make 5500; there are 5000"),
        ({"kl_weights": ()}, "kl_weights are"),
        ({"spreads": (0.1, 0.1)}, "spreads are"),
        ({"kl_weights": (-1.0,)}, "zero or above"),
        ({"workers": 0}, "workers is 0"),
        ({"lr": float("nan")}, "lr is nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Demo(**settings)


def test_missing_packages_are_named(monkeypatch, tmp_path):
    from rich.console import Console

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "mlxtend" else object())
    with pytest.raises(ImportError, match=re.escape("needs mlxtend: pip install 'pstn[demo]'")):
        run(Demo(runs=tmp_path / "runs"), Console())
    assert not (tmp_path / "runs").exists()
