"""A fleet of networks trained at once, against one network in an eager loop.

    python -m benchmarks.fleet --out benchmarks/results/fleet.jsonl

The network is the P-STN papers' for 28×28 digits (26,662 parameters, Student-t, similarity) and their CNN. The peer is
the plain loop that one would write: data on the device, a batch by ``index_select``, forward, backward, Adam (torch's
fused one). A row compares network-steps a second: M times the fleet's steps, against the loop's. The two take turns,
and the ratio is the median over turns; everything a step needs (shuffling, noise, settings) is inside the time. Long
runs on a GPU are compiled, which takes a while at their start; rows say so, and that time is not in them.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from pstn.bench import script
from pstn.data import Data
from pstn.demo.models import build
from pstn.objectives import elbo
from pstn.stn import param_groups
from pstn.train import Fleet, Member, Train, seeded
from pstn.train.fleet.lane import ENDURANCE
from pstn.train.signals import Signals

DEVICES = ("cuda", "cpu")
SEED = 0
WANT = {("cuda", "pstn", 8, 100): 150, ("cuda", "pstn", 256, 25): 40, ("cpu", "pstn", 8, 5): 2}
#: Network, batch, networks, and whether it is a run long enough to be compiled.
CASES = {
    "cuda": [
        *(("pstn", 8, m, False) for m in (1, 5, 25, 100)),
        *(("pstn", 256, m, False) for m in (1, 25, 100)),
        *(("pstn", 8, m, True) for m in (100, 400)),
        ("cnn", 8, 100, False),
        ("cnn", 256, 25, False),
    ],
    "cpu": [*(("pstn", 8, m, False) for m in (1, 2, 5, 10, 20)), ("cnn", 8, 5, False)],
}


def network(kind, seed):
    with seeded(seed):
        return build(kind)


def digits(count, seed=0):
    with seeded(seed):
        return Data(torch.randn(count, 1, 28, 28), torch.arange(count) % 10, tuple("0123456789"), f"noise {seed}")


def loop(kind, batch, device):
    """A function that takes n eager steps of one network."""
    model, data = network(kind, 0).to(device), digits(12 * batch).to(device)
    optimizer = torch.optim.Adam(param_groups(model, 1e-3, 0.1), weight_decay=0.01, fused=True)

    def take(n):
        for _ in range(n):
            index = torch.randint(len(data), (batch,), device=device)
            x, y = data.x.index_select(0, index), data.y.index_select(0, index)
            elbo(model(x), y, kl_weight=1e-4).backward()
            optimizer.step()
            optimizer.zero_grad()

    return take


def fleet(kind, batch, count, device, long):
    """A fleet with one chunk of steps behind it, so that everything is compiled and recorded."""
    steps = ENDURANCE if long else ENDURANCE - 1
    config = Train(
        steps=steps, batch_size=batch, lr=1e-3, kl_weight=1e-4, weight_decay=0.01, accelerator=device, validate_every=0
    )
    sets = [digits(12 * batch, seed) for seed in range(5)]
    members = [Member(network(kind, i), sets[i % 5], None, replace(config, seed=i)) for i in range(count)]
    with Signals() as signals:
        made = Fleet(members, signals)
    made.clock = time.perf_counter()
    made.advance()
    return made


def clocked(device, run, *arguments):
    """Seconds that a call takes, to the last kernel."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run(*arguments)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def rows(device, quick):
    turns, alone_steps = (2, 10) if quick else (5, 60)
    loops = {}
    for kind, batch, count, long in CASES[device][1:2] if quick else CASES[device]:
        if (kind, batch) not in loops:
            loops[kind, batch] = loop(kind, batch, device)
            loops[kind, batch](10)
        alone, made = loops[kind, batch], fleet(kind, batch, count, device, long)
        rates = []
        for _ in range(turns):
            one = alone_steps / clocked(device, alone, alone_steps)
            before = made.step
            spent = clocked(device, made.advance)
            rates.append((one, (made.step - before) * count / spent))
        yield {
            "kind": kind,
            "batch": batch,
            "networks": count,
            "compiled": long,
            "alone": statistics.median(one for one, _ in rates),
            "fleet": statistics.median(many for _, many in rates),
            "ratio": statistics.median(many / one for one, many in rates),
            "want": WANT.get((device, kind, batch, count)),
            "milliseconds": 1e3 * count / statistics.median(many for _, many in rates),
            "bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        }
        del made
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


COLUMNS = {
    "network": lambda r: {"pstn": "P-STN", "cnn": "CNN"}[r["kind"]],
    "batch": lambda r: str(r["batch"]),
    "networks": lambda r: f"{r['networks']}{', compiled' if r.get('compiled') else ''}",
    "alone, steps/s": lambda r: f"{r['alone']:,.0f}" if "cuda" in r.get("device", "cuda") else "",
    "fleet, network-steps/s": lambda r: f"{r['fleet']:,.0f}" if "cuda" in r.get("device", "cuda") else "",
    "ratio": lambda r: f"**{r['ratio']:.1f}×**",
    "bar": lambda r: "" if r["want"] is None else f"{r['want']}×",
}


if __name__ == "__main__":
    script(__file__)
