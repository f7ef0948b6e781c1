"""Write measured figures into the READMEs: every number between markers comes from results/ or benchmarks/results/.

Run it after new results: ``python docs/render.py``. The tests check that it would change nothing.
"""

import json
import re
from pathlib import Path

from pstn.demo.results import table, verdict
from pstn.report.table import Column, Table

ROOT = Path(__file__).parents[1]


def demo() -> str:
    """The demonstration's table, where it came from, and how the P-STN stands."""
    results = json.loads((ROOT / "results/demo.json").read_text())
    found = results["environment"]
    versions = f"torch {found['versions']['torch']}, Python {found['versions']['python']}"
    source = f"`{results['command']}`, {found['device']}, {versions}, commit {found['commit'][:10]}"
    shown = table(results)
    return f"{shown.title}\n\n{shown.markdown()}\n\n{' '.join(verdict(results))}\n\n<sub>{source}</sub>"


def warp() -> str:
    """The fused warp on a GPU."""
    rows = _read("warp")
    shown = [
        [
            ",".join(map(str, r["case"].values())),
            JOBS[r["job"]],
            r["peer"],
            *(f"{r[key]:.3f}" for key in ("ours_ms", "peer_ms")),
            f"**{r['ratio']:.1f}**",
            f"{r['over_floor']:.1f}",
            f"{r['error']:.0e}",
        ]
        for r in rows
    ]
    names = ("B, S, C, side", "job", "peer", "ours, ms", "peer, ms", "ratio", "× floor", "error")
    return _table(names, shown, rows)


def cpab_gpu() -> str:
    """CPAB flow and sampling in one kernel, against the torch path on the same GPU."""
    rows = _read("cpab_gpu")
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
    rows = _read("cpab")
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
    rows = _read("align")
    methods = list(dict.fromkeys(r["method"] for r in rows))
    found = {(r["set"], r["method"]): f"{r['test']:.3f}" for r in rows}
    sets = list(dict.fromkeys(r["set"] for r in rows))
    return _table(("set", *methods), [[s, *(found[s, m] for m in methods)] for s in sets], rows)


JOBS = {"forward": "forward", "theta": "and to θ", "theta+image": "and to θ and image"}
SECTIONS = {"demo": demo, "warp": warp, "cpab_gpu": cpab_gpu, "cpab": cpab, "align": align}
FILES = [ROOT / "README.md", ROOT / "benchmarks/README.md"]


def _read(name: str) -> list[dict]:
    return [json.loads(line) for line in (ROOT / f"benchmarks/results/{name}.jsonl").read_text().splitlines()]


def _table(names: tuple[str, ...], cells: list[list[str]], rows: list[dict]) -> str:
    columns = [Column(name, "left" if i < 3 else "right") for i, name in enumerate(names)]
    row = rows[0]
    versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
    source = f"`{row['command']}`, seed {row['seed']}, {row['device']}, {versions}, commit {row['commit'][:10]}"
    return f"{Table(columns, cells).markdown()}\n\n<sub>{source}</sub>"


def rendered(text: str) -> str:
    """The text with every section between its markers."""
    for name, section in SECTIONS.items():
        if f"<!-- {name} -->" in text:
            block = f"<!-- {name} -->\n{section()}\n<!-- /{name} -->"
            text = re.sub(rf"<!-- {name} -->.*<!-- /{name} -->", lambda _, block=block: block, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    for path in FILES:
        path.write_text(rendered(path.read_text()))
