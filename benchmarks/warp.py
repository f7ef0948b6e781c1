"""The fused warp against affine_grid + grid_sample, kornia and the memory's speed, on one GPU.

    PYTHONPATH=. python benchmarks/warp.py --out benchmarks/results/warp.jsonl

Every row is checked against float64 on fresh random input before it is timed. A time is the median over repeats of
device time a call, the queue filled ahead so that the host is not measured, and inputs and results taken in turn so
that they do not stay in the cache. The floor is every input read once and every result written once at the speed of a
large copy, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import types
from collections import deque
from pathlib import Path

import torch
import torch.nn.functional as F
import triton

from pstn.families import TPS, Similarity
from pstn.kernels import operators, reference
from pstn.warp import warp

CASES = [(256, 10, 1, 28), (256, 10, 3, 64), (64, 10, 3, 224), (64, 1, 3, 224)]
WANT = {"forward": 10, "theta": 8, "theta+image": 3}
SEED = 0


def fused(x, matrix):
    return operators.warp(x, matrix.flatten(-2), None, None, "affine", x.shape[2:], "fill", "linear")


def plain(x, matrix):
    """affine_grid + grid_sample on an expanded view."""
    s, b = matrix.shape[:2]
    grid = F.affine_grid(matrix[..., :2, :].flatten(0, 1), [s * b, *x.shape[1:]], align_corners=False)
    many = x.expand(s, *x.shape).reshape(s * b, *x.shape[1:])
    return F.grid_sample(many, grid, align_corners=False).unflatten(0, (s, b))


def kornia_transforms():
    """kornia.geometry.transform, or None. It needs its Rust reader only for files: a stub will do without it."""
    try:
        import kornia_rs  # noqa: F401
    except ImportError:
        stub = types.ModuleType("kornia_rs")
        stub.io = types.ModuleType("kornia_rs.io")
        sys.modules.update({"kornia_rs": stub, "kornia_rs.io": stub.io})
    try:
        import kornia.geometry.transform as found
    except ImportError as error:
        print(f"no kornia: {error}")
        return None
    return found


def by_kornia(transforms):
    def run(x, matrix):
        s, b = matrix.shape[:2]
        n = x.shape[-1]
        frame = torch.tensor([[n / 2, 0, (n - 1) / 2], [0, n / 2, (n - 1) / 2], [0, 0, 1]], device=x.device)
        pixels = torch.linalg.inv(frame @ matrix.flatten(0, 1) @ torch.linalg.inv(frame))
        many = x.expand(s, *x.shape).reshape(s * b, *x.shape[1:])
        size = (x.shape[-2], x.shape[-1])
        return transforms.warp_affine(many, pixels[:, :2], size, align_corners=True).unflatten(0, (s, b))

    return run


def step(function, job):
    """One call of a function (x, places) -> y for a job: forward, or forward and gradients."""

    def run(x, places, cotangent):
        if job == "forward":
            return (function(x, places),)
        x, places = x.detach().requires_grad_(job == "theta+image"), places.detach().requires_grad_()
        wanted = (places, x) if job == "theta+image" else (places,)
        return torch.autograd.grad(function(x, places), wanted, cotangent)

    return run


def device_ms(run, sets, repeats=7):
    """Median device time of a call in ms: the host runs ahead while the device waits."""
    keep = deque(maxlen=len(sets))
    for arguments in sets:
        keep.append(run(*arguments))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for n in range(12):
        keep.append(run(*sets[n % len(sets)]))
    ahead = time.perf_counter() - begin  # as long as the host takes to issue the calls, and more
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(int((2 * ahead + 1e-3) * 2e9))
        start.record()
        for n in range(12):
            keep.append(run(*sets[n % len(sets)]))
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 12)
    return statistics.median(times)


def host_ms(run, arguments, calls=50):
    """Time of a call in ms when the host issues one after another, as an eager program does."""
    run(*arguments)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        run(*arguments)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls


def extra_bytes(run, arguments):
    """The most memory a call holds beyond what was there before."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(*arguments)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def copy_speed():
    """Bytes a second of a large copy, read and written."""
    a = torch.rand(2**29, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.nbytes / (device_ms(lambda: b.copy_(a), [()] * 2) * 1e-3)


def launches():
    """How a warm call's own host time compares: µs to issue a forward pass of one small image."""
    x, matrix = torch.rand(1, 1, 8, 8, device="cuda"), torch.eye(3, device="cuda").expand(1, 1, 3, 3)
    return {name: 1e3 * host_ms(f, (x, matrix), 500) for name, f in (("ours", fused), ("torch", plain))}


def random_inputs(b, s, c, side):
    x = torch.rand(b, c, side, side, device="cuda")
    theta = 0.2 * torch.randn(s, b, 4, device="cuda")
    return x, Similarity().matrix(theta), torch.randn(s, b, c, side, side, device="cuda")


def worst_error(function, exact, x, places, cotangent, job):
    """The largest error of values and gradients, relative to the largest entry, against float64.

    On a smooth picture: where pixels are independent the derivative jumps at each of them, and a place that float32
    rounds to the other side has another derivative, right or wrong.
    """
    smooth = F.interpolate(x[..., ::8, ::8], x.shape[2:], mode="bicubic", align_corners=False)
    found = step(function, job)(smooth, places, cotangent)
    truth = step(exact, job)(smooth.double(), places.double(), cotangent.double())
    assert all(f.isfinite().all() for f in found)
    return max(((f.double() - t).abs().max() / t.abs().max()).item() for f, t in zip(found, truth, strict=True))


def measure(case, job, functions, speed):
    """Rows of one case and job: ours against each peer."""
    _, s, c, side = case
    small = random_inputs(4, min(s, 3), c, side)
    error, torch_error = (worst_error(functions[name], plain, *small, job) for name in ("ours", "torch"))
    x, _, out = inputs = random_inputs(*case)
    sets = [inputs] + [random_inputs(*case) for _ in range(min(7, 2**27 // (x.nbytes + out.nbytes)))]
    moved = {"forward": x.nbytes + out.nbytes, "theta": 2 * x.nbytes + 2 * out.nbytes}
    moved["theta+image"] = moved["theta"] + x.nbytes
    times = {name: device_ms(step(f, job), sets) for name, f in functions.items()}
    host = {name: host_ms(step(f, job), inputs) for name, f in functions.items()}
    memory = {name: extra_bytes(step(f, job), inputs) for name, f in functions.items()}
    # what a caller must have either way: the result of a forward pass, and the gradient
    given = out.nbytes + (x.nbytes if job == "theta+image" else 0)
    for peer in functions:
        if peer != "ours":
            yield {
                "case": dict(zip(("B", "S", "C", "side"), case, strict=True)),
                "job": job,
                "peer": peer,
                "ours_ms": times["ours"],
                "peer_ms": times[peer],
                "ratio": times[peer] / times["ours"],
                "want": WANT[job] if peer == "torch" else None,
                "host_ratio": host[peer] / host["ours"],
                "floor_ms": moved[job] / speed * 1e3,
                "over_floor": times["ours"] / (moved[job] / speed * 1e3),
                "error": error,
                "torch_error": torch_error,
                "memory_ratio": memory["ours"] / memory[peer],
                "memory_ratio_beyond_result": max(memory["ours"] - given, 0) / max(memory[peer] - given, 1),
            }


def tps_rows(speed, transforms, side=224, b=16, s=10, c=3):
    """Thin-plate splines: warp() against its own plain path and against kornia's."""
    family = TPS(4).cuda()
    x = torch.rand(b, c, side, side, device="cuda")
    theta = 0.05 * torch.randn(s, b, family.dim, device="cuda")
    cotangent = torch.randn(s, b, c, side, side, device="cuda")

    def ours(x, theta):
        return warp(x, family, theta)

    def unfused(x, theta):
        with reference():
            return warp(x, family, theta)

    functions = {"ours": ours, "reference": unfused}
    if transforms is not None:
        centres = family.control.to(x)

        def kornia(x, theta):
            many = x.expand(s, *x.shape).reshape(s * b, *x.shape[1:])
            moved = centres + theta.flatten(0, 1).unflatten(-1, (-1, 2))
            weights, affine = transforms.get_tps_transform(centres.expand_as(moved), moved)
            out = transforms.warp_image_tps(many, centres.expand_as(moved), weights, affine)
            return out.unflatten(0, (s, b))

        functions["kornia"] = kornia
    for job in ("forward", "theta"):
        error = worst_error(ours, unfused, x[:2], theta[:3, :2], cotangent[:3, :2], job)
        times = {n: device_ms(step(f, job), [(x, theta, cotangent)], 3) for n, f in functions.items()}
        memory = {n: extra_bytes(step(f, job), (x, theta, cotangent)) for n, f in functions.items()}
        floor = (x.nbytes + cotangent.nbytes) * (1 if job == "forward" else 2) / speed * 1e3
        for peer in list(functions)[1:]:
            yield {
                "case": {"B": b, "S": s, "C": c, "side": side, "family": "TPS(4)"},
                "job": job,
                "peer": peer,
                "ours_ms": times["ours"],
                "peer_ms": times[peer],
                "ratio": times[peer] / times["ours"],
                "want": None,
                "floor_ms": floor,
                "over_floor": times["ours"] / floor,
                "error": error,
                "memory_ratio": memory["ours"] / memory[peer],
            }


def show(row):
    case = ",".join(str(v) for v in row["case"].values())
    want = f"{row['want']}" if row["want"] else "-"
    print(
        f"{case:22} {row['job']:12} {row['peer']:10} {row['ours_ms']:8.4f} {row['peer_ms']:9.4f} {row['ratio']:7.1f} "
        f"{want:>4} {row['floor_ms']:7.4f} {row['over_floor']:6.2f} {row['error']:8.1e} {row['memory_ratio']:6.3f} "
        f"{row.get('memory_ratio_beyond_result', float('nan')):6.3f} {row.get('host_ratio', float('nan')):6.2f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/warp.jsonl"))
    parser.add_argument("--commit", default=None, help="the commit, where there is no git to ask")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/warp.py needs a CUDA GPU: the kernels do not run elsewhere")
    torch.manual_seed(SEED)
    transforms = kornia_transforms()
    speed = copy_speed()
    commit = arguments.commit or subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    origin = {
        "benchmark": "warp",
        "command": f"python benchmarks/warp.py --out {arguments.out.name}",
        "device": torch.cuda.get_device_name(),
        "copy_bytes_per_s": speed,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        "commit": commit.strip() or os.environ.get("COMMIT", ""),
        "seed": SEED,
    }
    print(f"{origin['device']}, torch {torch.__version__}, a copy moves {speed / 1e12:.2f} TB/s")
    print(
        f"{'B,S,C,side':22} {'job':12} {'peer':10} {'ours ms':>8} {'peer ms':>9} {'ratio':>7} want   floor /floor",
        end="",
    )
    print("    error memory beyond   host")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a") as file:
        for case in CASES:
            functions = {"ours": fused, "torch": plain}
            if transforms is not None:
                functions["kornia"] = by_kornia(transforms)
            for job in WANT:
                for row in measure(case, job, functions, speed):
                    file.write(json.dumps({**origin, **row}) + "\n")
                    show(row)
        for row in tps_rows(speed, transforms):
            file.write(json.dumps({**origin, **row}) + "\n")
            show(row)


if __name__ == "__main__":
    main()
