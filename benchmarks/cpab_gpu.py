"""The fused CPAB warp against the plain torch path (the walk in torch, then grid_sample), on one GPU.

    PYTHONPATH=. python benchmarks/cpab_gpu.py --out benchmarks/results/cpab_gpu.jsonl

Both paths are called through :func:`pstn.warp.warp`, one call after another as an eager program does; a time is the
median over repeats, host included. Errors are those of the fused path against the torch path in float64, with fresh
random fields: of the positions, absolute; of the warped values and the gradients, relative to the largest entry.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from pathlib import Path

import torch
import triton
import triton.language as tl

from pstn.families.cpab import CPAB
from pstn.grid import identity_grid
from pstn.kernels import cpab, reference
from pstn.kernels.lattice import lattice
from pstn.warp import warp

DEVICES = ("cuda",)
CASES = [(64, 1, 1, 28), (256, 10, 1, 28), (64, 10, 3, 64)]
CELLS = [(2, 2), (3, 3), (4, 4)]
JOBS = ("forward", "theta", "theta+image")
WANT = 20
#: The standard deviation of a velocity: points move by up to half the domain.
SPREAD = 0.3
SEED = 0


@triton.jit
def place(out, points, where, count, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The positions that the fused warp looks at."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = k < count
    where += tl.program_id(1) * COUNT
    p = (tl.load(points + 2 * k, mask=live, other=0.0), tl.load(points + 2 * k + 1, mask=live, other=0.0))
    u = cpab.place(cpab.read(where, (1,), 2, COUNT), where, (1,), (k, k), p, live, 2, COUNT)
    out += (tl.program_id(1) * count + k) * 2
    tl.store(out, u[0], mask=live)
    tl.store(out + 1, u[1], mask=live)


def draw(family, case):
    b, s, c, side = case
    theta = family.prior(0.5, SPREAD**2).sample((s, b)).cuda()
    return torch.rand(b, c, side, side, device="cuda"), theta, torch.randn(s, b, c, side, side, device="cuda")


def step(family, job):
    """One call: forward, or forward and gradients."""

    def run(x, theta, cotangent):
        if job == "forward":
            with torch.no_grad():
                return (warp(x, family, theta),)
        x, theta = x.detach().requires_grad_(job == "theta+image"), theta.detach().requires_grad_()
        out = warp(x, family, theta)
        return torch.autograd.grad(out, (theta, x) if job == "theta+image" else (theta,), cotangent)

    return run


def call_ms(run, inputs, repeats, calls):
    """Median time of a call in ms, when calls follow each other."""
    run(*inputs)
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run(*inputs)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(times)


def position_error(family, side, fields=64):
    """The largest error of a position, and the largest displacement."""
    theta = family.prior(0.5, SPREAD**2).sample((fields,)).cuda()
    points = identity_grid((side, side)).reshape(-1, 2).cuda()
    truth = family(theta.double(), points.double())
    where = lattice(family, theta[None])[0].contiguous()
    found = torch.full((fields, len(points), 2), torch.nan, device="cuda")
    grid = (-(-len(points) // 32), fields)
    place[grid](found, points, where, len(points), where.shape[1], 32, num_warps=1)
    return (found.double() - truth).abs().max().item(), (truth - points).abs().max().item()


def relative_errors(family, inputs, arrays=4):
    """The largest errors of values and gradients, judged on the first few arrays of the batch."""
    found = step(family, "forward")(*inputs) + step(family, "theta+image")(*inputs)
    assert all(f.isfinite().all() for f in found)
    x, theta, cotangent = [t.double() for t in inputs]
    exact = (x[:arrays], theta[:, :arrays], cotangent[:, :arrays])
    truth = step(family, "forward")(*exact) + step(family, "theta+image")(*exact)
    values, to_theta, to_image = [f.double() for f in found]
    parts = (values[:, :arrays], to_theta[:, :arrays], to_image[:arrays])
    return [((p - t).abs().max() / t.abs().max()).item() for p, t in zip(parts, truth, strict=True)]


def measure(case, cells):
    family = CPAB(cells)
    position, displacement = position_error(family, case[-1])
    inputs = draw(family, case)
    value, to_theta, to_image = relative_errors(family, inputs)
    for job in JOBS:
        run = step(family, job)
        ours = call_ms(run, inputs, 7, 10)
        with reference():
            plain = call_ms(run, inputs, 3, 1)
        yield {
            "case": dict(zip(("B", "S", "C", "side"), case, strict=True)),
            "cells": cells,
            "job": job,
            "ours_ms": ours,
            "torch_ms": plain,
            "ratio": plain / ours,
            "want": WANT,
            "displacement": displacement,
            "position_error": position,
            "value_error": value,
            "theta_gradient_error": to_theta,
            "image_gradient_error": to_image,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpab_gpu.jsonl"))
    parser.add_argument("--commit", default=None, help="the commit, where there is no git to ask")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/cpab_gpu.py needs a CUDA GPU: the kernels do not run elsewhere")
    torch.manual_seed(SEED)
    commit = arguments.commit or subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    origin = {
        "benchmark": "cpab_gpu",
        "command": f"python benchmarks/cpab_gpu.py --out {arguments.out.name}",
        "device": torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        "commit": commit.strip(),
        "seed": SEED,
    }
    print(f"{origin['device']}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"{'B,S,C,side':14} cells  {'job':12} {'ours ms':>8} {'torch ms':>9} {'ratio':>7}  moved position", end="")
    print("    value d/dtheta d/dimage")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a") as file:
        for case in CASES:
            for cells in CELLS:
                for row in measure(case, cells):
                    file.write(json.dumps({**origin, **row}) + "\n")
                    print(
                        f"{','.join(map(str, case)):14} {cells} {row['job']:12} {row['ours_ms']:8.3f} "
                        f"{row['torch_ms']:9.2f} {row['ratio']:7.1f} {row['displacement']:6.2f} "
                        f"{row['position_error']:8.1e} {row['value_error']:8.1e} {row['theta_gradient_error']:8.1e} "
                        f"{row['image_gradient_error']:8.1e}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
