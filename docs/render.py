"""Write measured figures into the READMEs: every number between markers comes from results/ or benchmarks/results/.

Run it after new results: ``pstn bench --render``. The tests check that it would change nothing. A benchmark whose file
has ``rows`` says itself what to show.
"""

import json
import re
from pathlib import Path

from pstn import bench
from pstn.demo.results import table, verdict
from pstn.experiment import compare
from pstn.experiment.catalogue import find, names
from pstn.experiment.comparison import AS_GOOD, SMALLER

ROOT = Path(__file__).parents[1]


def demo() -> str:
    """The demonstration's table, where it came from, and how the P-STN stands."""
    results = json.loads((ROOT / "results/demo.json").read_text())
    found = results["environment"]
    versions = f"torch {found['versions']['torch']}, Python {found['versions']['python']}"
    source = f"`{results['command']}`, {found['device']}, {versions}, commit {found['commit'][:10]}"
    shown = table(results)
    return f"{shown.title}\n\n{shown.markdown()}\n\n{' '.join(verdict(results))}\n\n<sub>{source}</sub>"


#: What README shows of Table 2, by the names of its rows; the paper's own figures beside the first two. The papers'
#: classifier is shown where that with batch normalisation is not measured.
KINDS = {
    "CNN": "cnn",
    "P-STN": "pstn",
    "CNN + affine augmentation, tuned": "cnn-augment-copies",
    "**CNN + learned spread, nothing tuned**": "learned",
    "batch norm + affine augmentation, tuned": "normed-augment",
    "**batch norm + learned spread, nothing tuned**": "fourth",
}
INSTEAD = {"cnn-augment-copies": "normed-augment", "learned": "fourth"}


def digits() -> str:
    """Accuracy, NLL and ECE on few digits: the papers' networks, tuned augmentation, and the learned spread."""
    found = compare(find("pstn22/table2"), results=ROOT / "results").by_name
    sizes = list(dict.fromkeys(int(name.rpartition("-")[2]) for name in found))
    shown = []
    for n in sizes:
        for label, kind in KINDS.items():
            if (result := found.get(f"{kind}-{n}")) is not None and f"{INSTEAD.get(kind)}-{n}" not in found:
                paper = result.row.paper.get("accuracy") if result.row.column == "published" else None
                reported = "" if paper is None else "{:.1f} ± {:.1f}".format(*(100 * x for x in paper))
                scores = [str(result.measured(metric)) for metric in ("accuracy", "nll", "ece")]
                scores.append(f"{result.measured('ece_chance').mean:.4f}")
                shown.append([str(n), label, reported, *scores])
    records = [record for result in found.values() for record in result.chosen]
    devices = " and ".join(sorted({record["device"] for record in records}))
    commits = " and ".join(sorted({record["commit"][:10] for record in records}))
    columns = ("digits", "network", "paper, accuracy, %", "accuracy, %", "NLL", "ECE", "by chance")
    command = "`pstn reproduce pstn22/table2`"
    return f"{_grid(columns, shown)}\n\n<sub>{command}, five folds, {devices}, commit {commits}</sub>"


def rivals() -> str:
    """How often the learned spread is better than tuned augmentation, over the sizes of the training set."""
    comparison, counted = compare(find("pstn22/table2"), results=ROOT / "results"), {}
    for claim in comparison.table.claims:
        who, beats, _ = claim.words.removeprefix("learned spread beats ").partition(" at n = ")
        if claim.words.startswith("learned spread beats") and beats:
            counted.setdefault(who, {}).setdefault(claim.metric, []).append(comparison.tested(claim)[0])
    shown = [
        [who, *(_counts(found[metric]) for metric in ("accuracy", "nll", "ece"))] for who, found in counted.items()
    ]
    return _grid(("learned spread against", "accuracy", "NLL", "ECE"), shown)


def _counts(verdicts: list[str]) -> str:
    """Verdicts on claims as how many there are of each, without those that there are none of."""
    words = {
        "confirmed": "confirmed",
        "as good": "as good",
        "open (ahead": "ahead",
        "open (not ahead": "not ahead",
        "refuted": "refuted",
    }
    counts = {word: sum(each.startswith(start) for each in verdicts) for start, word in words.items()}
    assert sum(counts.values()) == len(verdicts), verdicts
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)


#: What README shows of the autoencoders, by the ends of their rows' names.
FRONTS = {
    "base-none": "pictures as they are, no transformer",
    "augmented-none": "nudged, no transformer",
    "augmented-pre": "nudged, STN trained before",
    "augmented-stn": "nudged, **joint STN**",
    "augmented-pstn": "nudged, **joint P-STN**",
}


def codes() -> str:
    """What a linear classifier makes of the codes of pictures and of nudged pictures."""
    found = compare(find("invvae24/table1"), results=ROOT / "results").by_name
    shown, records = [], []
    for start, kind in (("vae10", "VAE, 10 numbers"), ("cat100", "categorical VAE, 10 × 10")):
        for end, what in FRONTS.items():
            result = found[f"{start}-{end}"]
            scores = [str(result.measured(metric)) for metric in ("accuracy", "moved_accuracy", "invariance")]
            shown.append([kind, what, *scores])
            records += result.chosen
    columns = ("codes", "trained on", "accuracy, %", "on nudged pictures, %", "distance of twins' codes")
    device, commit = records[0]["device"], records[0]["commit"][:10]
    source = f"<sub>`pstn reproduce invvae24/table1`, five seeds, {device}, commit {commit}</sub>"
    return f"{_grid(columns, shown)}\n\n{source}"


def tables() -> str:
    """Every table that has results: how many of its rows, and how its claims stand."""
    shown = []
    for name in names():
        if not (ROOT / f"results/{name}.jsonl").exists():
            continue
        comparison = compare(find(name), results=ROOT / "results")
        if not comparison.results:
            continue
        verdicts = [comparison.tested(claim)[0] for claim in comparison.table.claims]
        page = f"[{name}](docs/results/{name.replace('/', '-')}.md)"
        rows = f"{len(comparison.results)} of {len(comparison.table.rows)}"
        counts = [verdicts.count(word) for word in ("confirmed", "refuted")]
        counts.append(verdicts.count(SMALLER) + verdicts.count(AS_GOOD))
        counts.append(sum(verdict.startswith("open") for verdict in verdicts))
        shown.append([page, comparison.table.title, rows, *map(str, counts)])
    columns = ("table", "what", "rows measured", "claims confirmed", "refuted", "in size", "open")
    return _grid(columns, shown)


def cpab_gpu() -> str:
    """CPAB flow and sampling in one kernel, against the torch path on the same GPU."""
    rows = bench.read("cpab_gpu")
    shown = [
        [
            ",".join(map(str, r["case"].values())),
            "×".join(map(str, r["cells"])),
            JOBS[r["job"]],
            *(f"{r[key]:.2f}" for key in ("ours_ms", "torch_ms")),
            f"**{r['ratio']:.0f}**",
            f"{r['position_error']:.0e}",
        ]
        for r in rows
    ]
    return _table(
        ("B, S, C, side", "cells", "job", "ours, ms", "torch path, ms", "ratio", "position error"), shown, rows
    )


def cpab() -> str:
    """CPAB on the CPU, side by side with libcpab (2-D) and difw (1-D); ratios only, as absolute times mean little."""
    rows = bench.read("cpab")
    rows = [r for r in rows if r["started"] == rows[-1]["started"]]  # the last run
    peers = {(tuple(r["cells"]), tuple(r["size"])): r for r in rows if "both_ratio" not in r}
    shown = []
    for r in rows:
        if "both_ratio" in r:
            peer = peers.get((tuple(r["cells"]), tuple(r["size"])))
            if peer is None:
                continue
            shown.append(
                [
                    "×".join(map(str, r["cells"])),
                    f"{r['batch']} × {'×'.join(map(str, r['size']))}",
                    f"{r['who']} : {peer['who']}",
                    f"{r['forward_ratio']:.1f}",
                    f"**{r['both_ratio']:.1f}**",
                    f"{r['position_error']:.0e} : {peer['position_error']:.0e}",
                    f"{r['gradient_error']:.0e} : {peer['gradient_error']:.0e}",
                ]
            )
    names = ("cells", "arrays", "who", "forward", "forward + backward", "position error", "gradient error")
    return _table(names, shown, rows)


def align() -> str:
    """Nearest-centroid accuracy on test series; everything tuned was tuned by cross-validation on training series."""
    rows = bench.read("align")
    methods = list(dict.fromkeys(r["method"] for r in rows))
    found = {(r["set"], r["method"]): f"{r['test']:.3f}" for r in rows}
    sets = list(dict.fromkeys(r["set"] for r in rows))
    return _table(("set", *methods), [[s, *(found[s, m] for m in methods)] for s in sets], rows)


JOBS = {"forward": "forward", "theta": "and to θ", "theta+image": "and to θ and image"}
SECTIONS = {each.__name__: each for each in (demo, digits, rivals, codes, tables, cpab_gpu, cpab, align)}
FILES = [ROOT / "README.md", ROOT / "benchmarks/README.md"]


def _grid(names: tuple[str, ...], cells: list[list[str]]) -> str:
    return bench.tabulated({name: lambda row, i=i: row[i] for i, name in enumerate(names)}, cells)


def _table(names: tuple[str, ...], cells: list[list[str]], rows: list[dict]) -> str:
    return f"{_grid(names, cells)}\n\n{bench.source(rows[0])}"


def rendered(text: str) -> str:
    """The text with every section between its markers; the benchmarks' own README gets those that it lacks."""
    found = {name: one for name, one in bench.find(ROOT).items() if not one.script and one.results.exists()}
    if text.startswith("# Benchmarks"):
        for name, one in found.items():
            if f"<!-- {name} -->" not in text:
                text += f"\n## {one.title} (`{name}.py`)\n\n<!-- {name} -->\n<!-- /{name} -->\n"
    sections = {**SECTIONS, **{name: lambda one=one: bench.section(one) for name, one in found.items()}}
    for name, section in sections.items():
        if f"<!-- {name} -->" in text:
            block = f"<!-- {name} -->\n{section()}\n<!-- /{name} -->"
            text = re.sub(rf"<!-- {name} -->.*<!-- /{name} -->", lambda _, block=block: block, text, flags=re.DOTALL)
    return text


def main() -> list[Path]:
    """Write the files; returns those that changed."""
    changed = [path for path in FILES if rendered(path.read_text()) != path.read_text()]
    for path in changed:
        path.write_text(rendered(path.read_text()))
    return changed


if __name__ == "__main__":
    main()
