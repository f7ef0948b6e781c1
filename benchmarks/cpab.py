"""CPAB on the CPU beside libcpab and difw: time of forward and forward + backward, and errors, in one run.

    PYTHONPATH=. python benchmarks/cpab.py --out benchmarks/results/cpab.jsonl

The peers are ``pip install libcpab==0.1.3`` (needs matplotlib) and ``pip install difw==0.0.31`` (needs matplotlib,
ninja and a C++ compiler: it compiles when imported). A peer that is missing is named and left out.

difw is compiled with -O3: under the flags it ships with, its own exponential function breaks and positions are wrong by
the width of the domain. ``--shipped`` times and judges it as it comes instead.

All get the same fields, found by least squares in each peer's own basis, and the same points; gradients are those to
the parameters. The calls take turns, and a time is the smallest of the repeats: the machine may be busy with other
things. Errors are those of float32 against float64: of the positions, absolute, where the domain has width 2; of the
gradients, relative to the largest entry. The tests check float64 itself, against matrix exponentials.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import time
import warnings
from pathlib import Path

import torch
import torch.utils.cpp_extension

from pstn.families import cpab
from pstn.families.cpab import CPAB
from pstn.families.cpab import flow as operators
from pstn.grid import identity_grid
from pstn.train.log import environment

DEVICES = ("cpu",)
#: Cells, batch, size, and how many times as fast as the peer we want to be.
PLANE = [((2, 2), 64, (28, 28), 8), ((3, 3), 64, (28, 28), 8), ((4, 4), 64, (28, 28), 8), ((3, 3), 64, (64, 64), 8)]
LINE = [((5,), 128, (512,), None), ((16,), 128, (512,), 2), ((32,), 128, (512,), 2), ((64,), 128, (512,), 2)]
#: The standard deviation of a velocity, and how far it is correlated.
SPREAD, REACH = 0.3, 0.5
SEED = 0


class Ours:
    """Float32 parameters and points; by torch operations alone, or compiled where that is faster."""

    def __init__(self, cells, numba):
        self.family, self.numba = CPAB(cells), numba
        self.name = "pstn (numba)" if numba else "pstn (torch)"

    def of(self, theta):
        return theta

    def move(self, theta, points):
        operators.use_numba = self.numba
        return self.family(theta, points)


class Peer:
    """A library whose velocities are linear in its parameters, on the unit cube."""

    def __init__(self, family):
        self.family = family
        x = 2 * torch.rand(4000, family.ndim, generator=torch.Generator().manual_seed(1)) - 1
        unit = torch.eye(self.dim)
        theirs = torch.stack([self.velocity(t[None], (x + 1) / 2).flatten() for t in unit], dim=1).double()
        ours = family.velocity(torch.eye(family.dim), x).double().flatten(1).T / 2
        self.turn = torch.linalg.lstsq(theirs, ours).solution
        missed = (theirs @ self.turn - ours).abs().max().item()
        assert missed < 1e-4, f"{self.name} cannot represent the field: {missed}"

    def of(self, theta):
        return (theta.double() @ self.turn.T).float()


class Libcpab(Peer):
    name = "libcpab"

    def __init__(self, family):
        from libcpab import Cpab

        self.cpab = Cpab(list(family.cells), zero_boundary=True)
        self.dim = self.cpab.params.d
        super().__init__(family)

    def velocity(self, theta, points):
        return self.cpab.calc_vectorfield(points.T.contiguous(), theta).T

    def move(self, theta, points):
        return 2 * self.cpab.transform_grid((points.T.contiguous() + 1) / 2, theta).transpose(1, 2) - 1


class Difw(Peer):
    name = "difw"

    def __init__(self, family):
        from difw import Cpab

        self.cpab = Cpab(family.cells[0], backend="pytorch", device="cpu", zero_boundary=True)
        self.dim = self.cpab.params.d
        super().__init__(family)

    def velocity(self, theta, points):
        return self.cpab.calc_velocity(points[:, 0].contiguous(), theta)[0]

    def move(self, theta, points):
        return 2 * self.cpab.transform_grid((points[:, 0].contiguous() + 1) / 2, theta)[..., None] - 1


def compile_difw(shipped):
    """Import difw, compiled as it asks for or with -O3."""
    load = torch.utils.cpp_extension.load

    def safely(name, sources, extra_cflags, with_cuda=None, **options):
        if with_cuda:
            raise RuntimeError("the CPU is what is measured")
        flags = extra_cflags if shipped else ["-O3"]
        options["verbose"] = False
        # a name of its own: libcpab's build has the same one
        return load(name="difw_shipped" if shipped else "difw_o3", sources=sources, extra_cflags=flags, **options)

    torch.utils.cpp_extension.load = safely
    try:
        import difw.backend.pytorch.functions  # noqa: F401
    finally:
        torch.utils.cpp_extension.load = load


def gradient(one, theta, points, cotangent):
    leaf = one.of(theta).requires_grad_()
    (found,) = torch.autograd.grad((one.move(leaf, points) * cotangent).sum(), leaf)
    return found.double() @ one.turn if isinstance(one, Peer) else found.double()


def errors(one, theta, points, cotangent):
    """Of positions and gradients against float64."""
    exact = CPAB(one.family.cells)
    leaf = theta.double().requires_grad_()
    moved = exact(leaf, points.double())
    (slope,) = torch.autograd.grad((moved * cotangent.double()).sum(), leaf)
    with torch.no_grad():
        position = (one.move(one.of(theta), points).double() - moved).abs().max().item()
    return position, ((gradient(one, theta, points, cotangent) - slope).abs().max() / slope.abs().max()).item()


def times(ones, theta, points, cotangent, repeats):
    """Milliseconds of forward and forward + backward; all take turns."""
    found = {(one.name, job): [] for one in ones for job in ("forward", "both")}
    thetas = {one.name: one.of(theta) for one in ones}
    for turn in range(repeats + 1):
        for one in ones:
            for job in ("forward", "both"):
                leaf = thetas[one.name].clone().requires_grad_(job == "both")
                start = time.perf_counter()
                with torch.set_grad_enabled(job == "both"):
                    moved = one.move(leaf, points)
                if job == "both":
                    (moved * cotangent).sum().backward()
                if turn:  # the first is for warming up
                    found[one.name, job].append(1e3 * (time.perf_counter() - start))
    return {key: min(values) for key, values in found.items()}


def measure(cells, batch, size, want, kind, repeats):
    torch.manual_seed(SEED)
    family = CPAB(cells)
    theta = family.prior(REACH, SPREAD**2).sample((batch,))
    points = identity_grid(size).reshape(-1, family.ndim)
    cotangent = torch.randn(batch, len(points), family.ndim)
    ours = [
        Ours(cells, numba) for numba in ((False, True) if cpab.compiled.available() and len(cells) > 1 else (False,))
    ]
    ones = [*ours, kind(family)] if kind else ours
    taken = times(ones, theta, points, cotangent, repeats)
    for one in ones:
        position, slope = errors(one, theta, points, cotangent)
        row = {"cells": cells, "batch": batch, "size": size, "who": one.name, "want": want if one in ours else None}
        row |= {"forward_ms": taken[one.name, "forward"], "both_ms": taken[one.name, "both"]}
        row |= {"position_error": position, "gradient_error": slope}
        if kind and one in ours:
            row |= {f"{job}_ratio": taken[kind.name, job] / taken[one.name, job] for job in ("forward", "both")}
        yield row


def show(row):
    ratios = [f"{row[f'{job}_ratio']:7.1f}" if f"{job}_ratio" in row else f"{'':7}" for job in ("forward", "both")]
    case = f"{'×'.join(map(str, row['cells']))}; {row['batch']} of {'×'.join(map(str, row['size']))}"
    print(
        f"{case:22} {row['who']:13} {row['forward_ms']:9.2f} {row['both_ms']:9.2f} {ratios[0]} {ratios[1]} "
        f"{row['want'] or '':>4} {row['position_error']:9.1e} {row['gradient_error']:9.1e}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cpab.jsonl"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--shipped", action="store_true", help="difw with its own compiler flags, which break it")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)

    there = {name: importlib.util.find_spec(name) is not None for name in ("libcpab", "difw")}
    for name in [name for name, found in there.items() if not found]:
        print(f"{name} is not installed: pip install {name}, then run again; its columns are left out")
    if there["difw"]:
        compile_difw(arguments.shipped)
    facts = {"benchmark": "cpab", **environment(torch.device("cpu")), "seed": SEED}
    for name in ("libcpab", "difw", "numba"):
        if importlib.util.find_spec(name):
            facts["versions"][name] = importlib.metadata.version(name)
    given = {"--threads": arguments.threads, "--repeats": arguments.repeats}
    facts["command"] = " ".join(["python benchmarks/cpab.py", *(f"{name} {value}" for name, value in given.items())])
    facts["command"] += " --shipped" if arguments.shipped else ""
    facts["load"] = os.getloadavg()[0]  # what else the machine does
    facts["difw_flags"] = "as shipped" if arguments.shipped else "-O3"

    print(f"{facts['device']}, torch {torch.__version__}, difw {facts['difw_flags']}")
    print(f"{'cells; batch of size':22} {'':13} {'fwd ms':>9} {'f+b ms':>9} {'× fwd':>7} {'× f+b':>7} want", end="")
    print("  position  gradient")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a") as file:
        for cases, kind, name in ((LINE, Difw, "difw"), (PLANE, Libcpab, "libcpab")):
            for case in cases:
                for row in measure(*case, kind if there[name] else None, arguments.repeats):
                    file.write(json.dumps({**facts, **row}) + "\n")
                    show(row)


if __name__ == "__main__":
    main()
