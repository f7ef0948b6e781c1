"""A fleet of networks trained at once, against one network in an eager loop.

    python -m benchmarks.fleet --out benchmarks/results/fleet.jsonl

The network is the P-STN papers' for 28×28 digits (26,662 parameters, Student-t, similarity) and their CNN. The peer is
the plain loop that one would write: data on the device, a batch by ``index_select``, forward, backward, Adam (torch's
fused one). A row compares network-steps a second: M times the fleet's steps, against the loop's. The two take turns,
and the ratio is the median over turns; everything a step needs (shuffling, noise, settings) is inside the time. On a
GPU, a step of small networks is one kernel, in which each has a multiprocessor; beside it stand steps of many kernels,
recorded, or compiled as well, as networks that are too large for that train. Compilers are not in the times.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import torch

from pstn.bench import read, script
from pstn.data import Data
from pstn.demo.models import build
from pstn.objectives import elbo
from pstn.stn import param_groups
from pstn.train import Fleet, Member, Train, seeded
from pstn.train.fleet import resident
from pstn.train.fleet.lane import ENDURANCE
from pstn.train.signals import Signals

DEVICES = ("cuda", "cpu")
SEED = 0
WANT = {("cuda", "pstn", 8, 132): 150, ("cuda", "pstn", 256, 25): 40, ("cpu", "pstn", 8, 5): 2}
#: Network, batch, networks, and what a step is.
CASES = {
    "cuda": [
        *(("pstn", 8, m, "one kernel") for m in (1, 5, 25, 132, 400)),
        *(("pstn", 8, m, "recorded") for m in (5, 132)),
        ("pstn", 8, 132, "compiled"),
        ("cnn", 8, 132, "one kernel"),
        ("pstn", 256, 25, "recorded"),
    ],
    "cpu": [*(("pstn", 8, m, "") for m in (1, 2, 5, 10, 20)), ("cnn", 8, 5, "")],
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


def fleet(kind, batch, count, device, how):
    """A fleet with one chunk of steps behind it, so that everything is compiled and recorded."""
    steps = ENDURANCE if how == "compiled" else ENDURANCE - 1
    config = Train(
        steps=steps, batch_size=batch, lr=1e-3, kl_weight=1e-4, weight_decay=0.01, accelerator=device, validate_every=0
    )
    sets = [digits(12 * batch, seed) for seed in range(5)]
    members = [Member(network(kind, i), sets[i % 5], None, replace(config, seed=i)) for i in range(count)]
    with Signals() as signals:
        made = Fleet(members, signals)
    made.clock = time.perf_counter()
    before, resident.PRODUCTS = resident.PRODUCTS, resident.PRODUCTS if how == "one kernel" else 0
    made.advance()
    resident.PRODUCTS = before
    assert device != "cuda" or [lane.kernel is not None for lane in made.lanes.values()] == [how == "one kernel"]
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
    for kind, batch, count, how in CASES[device][1:2] if quick else CASES[device]:
        if (kind, batch) not in loops:
            loops[kind, batch] = loop(kind, batch, device)
            loops[kind, batch](10)
        alone, made = loops[kind, batch], fleet(kind, batch, count, device, how)
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
            "how": how,
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
    "networks": lambda r: str(r["networks"]),
    "a step is": lambda r: kind_of(r),
    "alone, steps/s": lambda r: f"{r['alone']:,.0f}" if "cuda" in r.get("device", "cuda") else "",
    "fleet, network-steps/s": lambda r: f"{r['fleet']:,.0f}" if "cuda" in r.get("device", "cuda") else "",
    "ratio": lambda r: f"**{r['ratio']:.1f}×**",
    "bar": lambda r: "" if r["want"] is None else f"{r['want']}×",
}

#: Floating-point operations of the P-STN for one digit and step. Forward: two convolutions of the body, two of the
#: localizer, the linear layers. Backward the same twice, but for the localizer's input, whose gradient nobody asks for.
FORWARD = 2 * (10 * 24**2 * 25 + 20 * 8**2 * 250 + 8 * 24**2 * 25 + 14 * 8**2 * 200 + 320 * 50 + 50 * 10 + 224 * 8)
OPERATIONS = 3 * FORWARD - 2 * 8 * 24**2 * 25


def report(rows):
    """On the GPU with what limits it, then on the CPU."""
    from pstn.bench import source, tabulated

    on_cpu = [r for r in rows if r["device"].startswith("cpu")]
    on_gpu = [r for r in rows if r not in on_cpu]
    parts = []
    on_one = {name: column for name, column in COLUMNS.items() if "/s" not in name and "step is" not in name}
    for some, columns in ((on_gpu, COLUMNS), (on_cpu, on_one)):
        if some := [r for r in some if r["started"] == some[-1]["started"]]:
            parts += [tabulated(columns, some), source(some[0])]
            parts += [roofline(some)] if some[0] in on_gpu else []
    return "\n\n".join(part for part in parts if part)


def kind_of(row):
    """What a step is; of rows from before there were steps of one kernel, whether it was compiled."""
    return row.get("how", "compiled" if row.get("compiled") else "recorded")


def roofline(rows):
    """What limits the next multiple: arithmetic, memory, beginnings."""
    found = {(r["batch"], r["networks"], kind_of(r)): r for r in rows if r["kind"] == "pstn"}
    facts = [r for r in read("warp") if "launch_ms" in r]
    large, many, one = (found.get(key) for key in ((256, 25, "recorded"), (8, 132, "one kernel"), (8, 5, "one kernel")))
    if not (large and many and one and facts):
        return ""
    speed = facts[-1]["multiply_flops_per_s"]
    least = 1e3 * 256 * 25 * OPERATIONS / speed
    return (
        f"**What limits the next multiple.** A step of 25 networks at batch 256 is {256 * 25 * OPERATIONS / 1e9:.0f} "
        f"billion operations, {least:.2f} ms at the {speed / 1e12:.0f} TFLOP/s of a large float32 matrix product; it "
        f"takes {large['milliseconds']:.2f} ms. Convolutions of ten channels are no such product: a multiplication "
        f"needs a number of its own from the cache. At batch 8, a step takes {one['milliseconds']:.2f} ms where five "
        f"multiprocessors are at work, and {many['milliseconds']:.2f} ms where all 132 are, which share the memory."
    )


if __name__ == "__main__":
    script(__file__)
