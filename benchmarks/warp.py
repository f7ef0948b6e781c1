"""The warp against affine_grid + grid_sample, kornia and the memory's speed.

    python -m benchmarks.warp --out benchmarks/results/warp.jsonl

On a GPU it is the fused kernels. Every row is checked against float64 on fresh random input before it is timed. A time
is the median over repeats of device time a call, the queue filled ahead so that the host is not measured, and inputs
and results taken in turn so that they do not stay in the cache; ``host_ratio`` compares calls issued one after another.
The floor is every input read once and every result written once at the speed of a large copy, measured in the same run.
Peak memory is what a call holds at most beyond its inputs, ours as a part of the peer's; the result itself may be more
than a third of that (``result_ratio``).

On the CPU it is :func:`pstn.warp.warp`, from parameters on, beside the same on an image that was repeated S times;
calls take turns, and the ratio is the median over turns.
"""

from __future__ import annotations

import os
import statistics
import sys
import types

import torch
import torch.nn.functional as F

from benchmarks.timing import copy_speed, device_ms, extra_bytes, host_ms, launch_ms, multiply_speed, turns_ms
from pstn.bench import script
from pstn.families import TPS, Similarity
from pstn.kernels import operators, reference
from pstn.warp import warp

DEVICES = ("cuda", "cpu")
SEED = 0
CASES = [(256, 10, 1, 28), (256, 10, 3, 64), (64, 10, 3, 224), (64, 1, 3, 224)]
#: How cost grows: with the number of samples, and with the side.
SWEEPS = {
    "S": [(64, s, 3, 64) for s in (1, 2, 5, 10, 20, 50)],
    "side": [(64, 10, 3, side) for side in (16, 32, 64, 128, 256)],
}
ON_CPU = [(64, 10, 1, 28), (64, 1, 1, 28), (16, 10, 3, 64), (16, 1, 3, 64), (4, 10, 3, 224), (8, 1, 3, 224)]
WANT = {"forward": 10, "theta": 8, "theta+image": 3}


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


def rows(device, quick):
    """All rows of a device; on a GPU they begin with the facts that the roofline needs."""
    if device == "cpu":
        yield from cpu_rows(ON_CPU[:2] if quick else ON_CPU, 3 if quick else 41)
        return
    transforms = kornia_transforms()
    speed = copy_speed()
    yield {"facts": facts(speed), **small_row()}
    functions = {"ours": fused, "torch": plain}
    peers = functions if transforms is None else {**functions, "kornia": by_kornia(transforms)}
    for case in CASES[:1] if quick else CASES:
        for job in WANT:
            yield from measure(case, job, peers, speed, WANT[job])
    if quick:
        return
    for points in (4, 6):
        yield from tps_rows(speed, transforms, points)
    for axis, cases in SWEEPS.items():
        for case in cases:
            yield from ({**row, "sweep": axis} for row in grow_rows(case, functions, speed))


def facts(speed):
    """What the device can do, for the roofline."""
    import triton

    return {
        "copy_bytes_per_s": speed,
        "multiply_flops_per_s": multiply_speed(),
        "launch_ms": launch_ms(),
        "versions": {"triton": triton.__version__},
    }


def small_row():
    """One tiny image, issued call after call: nothing but the host's time."""
    x, matrix = torch.rand(1, 1, 8, 8, device="cuda"), torch.eye(3, device="cuda").repeat(1, 1, 1, 1)
    times = {name: host_ms(f, (x, matrix), calls=300) for name, f in (("ours", fused), ("torch", plain))}
    return {**named((1, 1, 1, 8)), "job": "host", "peer": "torch", **compared(times, "torch")}


def named(case, **more):
    return {"case": {**dict(zip(("B", "S", "C", "side"), case, strict=True)), **more}}


def compared(times, peer, want=None):
    ratio = times[peer] / times["ours"]
    return {"ours_ms": times["ours"], "peer_ms": times[peer], "ratio": ratio, "want": want}


def measure(case, job, functions, speed, want=None):
    """Rows of one case and job: ours against each peer."""
    _, s, c, side = case
    small = random_inputs(4, min(s, 3), c, side)
    error, torch_error = (worst_error(functions[name], plain, *small, job) for name in ("ours", "torch"))
    sets = fresh_sets(case)
    x, _, out = inputs = sets[0]
    floor = floor_ms(inputs, job, speed)
    times = {name: device_ms(step(f, job), sets) for name, f in functions.items()}
    host = {name: host_ms(step(f, job), inputs, 3, 20) for name, f in functions.items()}
    memory = {name: extra_bytes(step(f, job), inputs) for name, f in functions.items()}
    # what a caller must have either way: the result of a forward pass, and the gradient
    given = out.nbytes + (x.nbytes if job == "theta+image" else 0)
    for peer in functions:
        if peer != "ours":
            yield {
                **named(case),
                "job": job,
                "peer": peer,
                **compared(times, peer, want if peer == "torch" else None),
                "host_ratio": host[peer] / host["ours"],
                "floor_ms": floor,
                "over_floor": times["ours"] / floor,
                "error": error,
                "torch_error": torch_error,
                "memory_ratio": memory["ours"] / memory[peer],
                "result_ratio": given / memory[peer],
            }


def fresh_sets(case):
    """Enough inputs that none is still in the cache when its turn comes again."""
    x, matrix, out = random_inputs(*case)
    more = min(7, 2**27 // (x.nbytes + out.nbytes))
    return [(x, matrix, out)] + [random_inputs(*case) for _ in range(more)]


def floor_ms(inputs, job, speed):
    """Everything read once and written once: image and result, and for gradients image, cotangent, gradient too."""
    x, _, out = inputs
    moved = (x.nbytes + out.nbytes) * (1 if job == "forward" else 2)
    return (moved + (x.nbytes if job == "theta+image" else 0)) / speed * 1e3


def grow_rows(case, functions, speed):
    """Times alone, of a case of a sweep."""
    sets = fresh_sets(case)
    for job in ("forward", "theta"):
        times = {name: device_ms(step(f, job), sets, 5) for name, f in functions.items()}
        floor = floor_ms(sets[0], job, speed)
        row = {**named(case), "job": job, "peer": "torch", **compared(times, "torch")}
        yield {**row, "floor_ms": floor, "over_floor": times["ours"] / floor}


def tps_rows(speed, transforms, points, side=224, b=16, s=10, c=3):
    """Thin-plate splines: warp() against its own plain path and against kornia's."""
    family = TPS(points).cuda()
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
                **named((b, s, c, side), family=f"TPS({points})"),
                "job": job,
                "peer": peer,
                **compared(times, peer),
                "floor_ms": floor,
                "over_floor": times["ours"] / floor,
                "error": error,
                "memory_ratio": memory["ours"] / memory[peer],
                "result_ratio": cotangent.nbytes / memory[peer],
            }


def cpu_rows(cases, repeats):
    """warp() against the same with every image repeated, both from parameters on."""
    family = Similarity()

    def ours(x, theta):
        return warp(x, family, theta)

    def repeated(x, theta):
        return plain(x, family.matrix(theta))

    for case in cases:
        b, s, c, side = case
        x, theta = torch.rand(b, c, side, side), 0.2 * torch.randn(s, b, 4)
        cotangent = torch.randn(s, b, c, side, side)
        for job in ("forward", "theta"):
            error = worst_error(ours, repeated, x, theta, cotangent, job)
            functions = {"ours": step(ours, job), "torch": step(repeated, job)}
            turns = turns_ms(functions, (x, theta, cotangent), repeats)
            times = {name: statistics.median(taken) for name, taken in turns.items()}
            want = 1.3 if s > 1 and job == "forward" else 1.0
            row = {**named(case), "job": job, "peer": "torch", **compared(times, "torch", want), "error": error}
            # turn by turn: another program's burst of work slows both calls of a turn
            row["ratio"] = statistics.median(b / a for a, b in zip(turns["ours"], turns["torch"], strict=True))
            yield {**row, "load": os.getloadavg()[0]}


JOBS = {"forward": "forward", "theta": "and to θ", "theta+image": "and to θ and image", "host": "forward, host"}


def bar(row):
    """The bar, and whether it is passed."""
    if row["want"] is None:
        return ""
    return f"{row['want']}{'' if row['ratio'] >= row['want'] else ' (missed)'}"


def memory(row):
    """Peak memory as a part of the peer's; where the result alone is more than a third, that too."""
    if "memory_ratio" not in row:
        return ""
    alone = row.get("result_ratio", 0)
    result = f" (result {alone:.2f})" if alone > 1 / 3 else ""
    return f"{row['memory_ratio']:.2f}{result}"


COLUMNS = {
    "B, S, C, side": lambda r: ",".join(map(str, r["case"].values())),
    "job": lambda r: JOBS[r["job"]],
    "peer": lambda r: r["peer"],
    "ours, ms": lambda r: f"{r['ours_ms']:.3f}",
    "peer, ms": lambda r: f"{r['peer_ms']:.3f}",
    "ratio": lambda r: f"**{r['ratio']:.1f}**",
    "bar": bar,
    "× floor": lambda r: f"{r['over_floor']:.1f}" if "over_floor" in r else "",
    "memory": memory,
    "error": lambda r: f"{r['error']:.0e}" if "error" in r else "",
}


def report(rows):
    """On the GPU, run by run, what limits it, and how cost grows; then on the CPU."""
    from pstn.bench import source, tabulated

    on_cpu = [r for r in rows if r["device"].startswith("cpu")]
    on_gpu = [r for r in rows if r not in on_cpu]
    parts = []
    for i, bars in enumerate(by_run([r for r in on_gpu if "sweep" not in r and r["job"] != "profile"])):
        parts += ["An earlier run, for what the last one did not measure:"] if i else []
        parts += [tabulated(COLUMNS, bars), source(bars[0])]
    parts += [roofline(on_gpu)]
    for sweeps in by_run([r for r in on_gpu if "sweep" in r]):
        parts += ["How cost grows with S, and with the side:", grown(sweeps), source(sweeps[0])]
    if on_cpu:
        kept = {name: cell for name, cell in COLUMNS.items() if name not in ("× floor", "memory")}
        parts += ["On a CPU, `pstn.warp` from parameters on, against repeating the image S times:"]
        parts += [tabulated(kept, on_cpu), source(on_cpu[0])]
    return "\n\n".join(part for part in parts if part)


def by_run(rows):
    """The rows of each run, the newest first."""
    runs = {}
    for row in rows:
        runs.setdefault(row.get("started", ""), []).append(row)
    return [runs[started] for started in sorted(runs, reverse=True)]


def grown(rows):
    """A line a case: forward and with the gradient to θ."""
    from pstn.bench import tabulated

    pairs = {}
    for r in rows:
        pairs.setdefault((r["sweep"], tuple(r["case"].values())), {})[r["job"]] = r
    case = "B, S, C, side"
    columns = {"grows": lambda p: p["forward"]["sweep"], case: lambda p: COLUMNS[case](p["forward"])}
    for job, short in (("forward", "forward"), ("theta", "to θ")):
        columns[f"{short}, ms"] = lambda p, job=job: f"{p[job]['ours_ms']:.3f}"
        columns[f"{short}, ratio"] = lambda p, job=job: f"**{p[job]['ratio']:.1f}**"
        columns[f"{short}, × floor"] = lambda p, job=job: f"{p[job]['over_floor']:.1f}"
    return tabulated(columns, list(pairs.values()))


#: Floating-point operations of a pixel: its place (8), pixels and fractions on two axes (14), four weights (6).
OPERATIONS = 28
#: And of each of its channels: four products, three sums.
CHANNEL = 7


def roofline(rows):
    """What limits the next multiple of the forward pass: bytes, operations, launch, and the corners' way in."""
    ours = [r for r in rows if r["job"] == "forward" and r["peer"] == "torch" and "launch_ms" in r]
    found = {tuple(r["case"].values()): r for r in ours}
    host = [r for r in rows if r["job"] == "host"]
    small, _, many, one = (found.get(case) for case in CASES)
    if not (small and many and one and host):
        return ""

    def needs(case, row):
        b, s, c, side = case
        work = b * s * side**2 * (OPERATIONS + CHANNEL * c) / row["multiply_flops_per_s"]
        return (
            f"At {label(case)} a forward pass needs {1e3 * row['floor_ms']:.0f} µs for its bytes and "
            f"{1e6 * work:.1f} µs for its operations, and takes {1e3 * row['ours_ms']:.0f} µs."
        )

    b, s, c, side = CASES[2]
    reads = 4 * 4 * b * s * c * side**2 / (many["ours_ms"] * 1e-3)
    return (
        f"**What limits the next multiple.** A copy moves {many['copy_bytes_per_s'] / 1e12:.2f} TB/s, a float32 "
        f"matrix product does {many['multiply_flops_per_s'] / 1e12:.0f} TFLOP/s, and one kernel follows another after "
        f"{1e3 * many['launch_ms']:.1f} µs. {needs(CASES[2], many)} {needs(CASES[3], one)} Neither memory nor "
        f"arithmetic is the limit, but the way in between: every output pixel reads four corners of every channel on "
        f"its own, {reads / 1e12:.1f} TB/s in pieces of four bytes.{profiled(rows)} At most {many['over_floor']:.1f}× "
        f"is left at S = 10, for a kernel that brings a patch of the input to shared memory once and gathers there; at "
        f"S = 1 it is {one['over_floor']:.1f}×, launch included. At {label(CASES[0])} a forward pass takes "
        f"{1e3 * small['ours_ms']:.0f} µs of the device, and an eager call keeps the host busy for "
        f"{1e3 * host[0]['ours_ms']:.0f} µs (torch's two: {1e3 * host[0]['peer_ms']:.0f} µs): small warps want a CUDA "
        "graph or torch.compile around the whole step."
    )


def profiled(rows):
    """What a profiler's counters say, where it was asked (``ncu``, not part of a plain run)."""
    said = [
        f" at {label(r['case'].values())} the first-level cache is busy {r['l1_busy']:.0%} of the time, the "
        f"second-level cache {r['l2_busy']:.0%}, memory {r['memory_busy']:.0%}"
        for r in rows
        if r["job"] == "profile"
    ]
    return f" By the hardware's counters,{';'.join(said)}." if said else ""


def label(case):
    return "({}, {}, {}, {})".format(*case)


if __name__ == "__main__":
    script(__file__)
