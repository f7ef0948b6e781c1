"""Convolutions of stacked networks, each with kernels of its own, against ``vmap``'s grouped convolution, on one GPU.

    python -m benchmarks.convolutions --out benchmarks/results/convolutions.jsonl

The shapes are those of the papers' networks in fleets of their size. A row is forward, gradient to the images and to
the kernels, recorded as a fleet records its step, so that the three share what they copy. Beside that, the row has the
times of the three one by one, by each way that :mod:`pstn.kernels.convolve` has to choose from. Errors are against
float64, relative to the largest entry; tensor cores round factors to eleven digits, the peer's TF32 and our scaled
halves alike.
"""

from __future__ import annotations

import torch
from torch.func import vmap

from benchmarks.timing import device_ms
from pstn.bench import script
from pstn.kernels import convolve as fused
from pstn.kernels import halves, slide
from pstn.kernels.exactness import as_convolved
from pstn.train.fleet.convolve import convolve as products
from pstn.train.fleet.copies import share_copies
from pstn.train.fleet.record import record

DEVICES = ("cuda",)
SEED = 0
#: Networks, pictures, channels, size, channels made, kernel, padding.
CASES = {
    "P-STN, second": (25, 64, 10, (12, 12), 20, (5, 5), 0),
    "depth, second": (5, 64, 28, (12, 12), 53, (5, 5), 0),
    "R, first": (10, 512, 1, (28, 28), 16, (9, 9), 0),
    "R, second": (10, 512, 16, (10, 10), 32, (7, 7), 0),
    "T, first": (3, 256, 1, (60, 60), 16, (9, 9), 0),
    "T, localizer's first": (3, 256, 16, (26, 26), 20, (5, 5), 0),
    "T, localizer's second": (3, 256, 20, (11, 11), 20, (5, 5), 0),
    "T, CNN's second": (3, 256, 21, (26, 26), 32, (7, 7), 0),
    "S, first": (3, 256, 1, (112, 112), 16, (9, 9), 0),
    "S, localizer's first": (3, 256, 16, (52, 52), 16, (5, 5), 0),
    "S, second": (3, 256, 16, (52, 52), 16, (7, 7), 0),
    "S, CNN's second": (3, 256, 23, (52, 52), 21, (7, 7), 0),
    "STN'15, first": (3, 256, 1, (28, 28), 89, (9, 9), 0),
    "STN'15, second": (3, 256, 89, (10, 10), 89, (7, 7), 0),
    "STN'15, localizer's second": (3, 256, 20, (8, 8), 20, (5, 5), 0),
    "STN'15 RTS, second": (3, 256, 87, (17, 17), 87, (7, 7), 0),
    "STN'15 TC, second": (3, 256, 80, (26, 26), 80, (7, 7), 0),
    "rot12k, second": (6, 128, 64, (10, 10), 64, (7, 7), 0),
    "series, first": (5, 160, 1, (1, 152), 196, (1, 8), 0),
    "series, second": (5, 16, 164, (1, 145), 256, (1, 8), 0),
    "series, second, ten draws": (5, 160, 196, (1, 145), 256, (1, 8), 0),
    "series, third, ten draws": (5, 160, 256, (1, 138), 256, (1, 5), 0),
    "series, localizer's second": (5, 16, 64, (1, 145), 164, (1, 5), 0),
    "signs, stage 1": (5, 10, 16, (64, 64), 16, (3, 3), 1),
    "signs, stage 2": (5, 10, 32, (32, 32), 32, (3, 3), 1),
    "signs, stage 4": (5, 10, 128, (8, 8), 128, (3, 3), 1),
    "plankton, first": (2, 64, 1, (95, 95), 32, (3, 3), 1),
    "plankton, second": (2, 64, 32, (95, 95), 32, (3, 3), 1),
    "plankton, sixth": (2, 64, 128, (23, 23), 128, (3, 3), 1),
    "plankton, tenth": (2, 64, 256, (11, 11), 256, (3, 3), 1),
}
JOBS = ("forward", "to_input", "to_weight")
#: The most products of channels that the kernels without tensor cores are tried for.
TRIED = 4096


def problem(case):
    """Images, kernels and slopes."""
    m, b, c, size, o, kernel, _ = case
    x, weight = torch.randn(m, b, c, *size, device="cuda"), torch.randn(m, o, c, *kernel, device="cuda")
    out = [n + 2 * p - k + 1 for n, k, p in zip(size, kernel, around(case), strict=True)]
    return x, weight, torch.randn(m, b, o, *out, device="cuda")


def around(case):
    """The padding of each axis: none where there is but one row."""
    return tuple(case[-1] if n > 1 else 0 for n in case[3])


def grouped(x, weight, slope, padding):
    """The peer: ``vmap`` of torch's convolution, and its two gradients."""
    out = vmap(lambda x, w: torch.conv2d(x, w, padding=padding))(x, weight)
    return out, *torch.autograd.grad(out, (x, weight), slope)


def multiplied(x, weight, slope, padding):
    """The same with the windows copied out, as matrix products."""
    with as_convolved():
        out = vmap(lambda x, w: products(x, w, None, (1, 1), padding))(x, weight)
        return out, *torch.autograd.grad(out, (x, weight), slope)


def ways(case):
    """What there is to choose from, by name and job: functions of images, kernels and slopes."""
    _, _, c, _, o, kernel, _ = case
    how = (1, 1), around(case)
    back = (1, 1), tuple(k - 1 - p for k, p in zip(kernel, how[1], strict=True))
    found = {
        "halves": (
            lambda x, w, g: halves.forward(torch.empty_like(g), halves.pack_image(x, w.shape, *how), w, None, *how),
            lambda x, w, g: halves.to_input(torch.empty_like(x), halves.pack(g), w, how[1]),
            lambda x, w, g: halves.to_weight(
                torch.empty_like(w), halves.pack(g), halves.pack_image(x, w.shape, *how), *how
            ),
        ),
    }
    if c * o <= TRIED:
        found["plain"] = (
            lambda x, w, g: slide.slide(torch.empty_like(g), x, w, None, *how),
            lambda x, w, g: slide.slide(torch.empty_like(x), g, w, None, *back, turned=True),
            lambda x, w, g: slide.to_weight(torch.empty_like(w), g, x, *how),
        )
    return found


def chosen(case, inputs):
    """What a fleet does: the three jobs as a recorded step has them."""
    how = (1, 1), around(case)

    def step(x, w, g):
        return (
            fused.convolve(x, w, None, *how),
            fused.to_input(g, w, x.shape[3:], *how),
            fused.to_weight(g, x, w.shape[3:], *how),
        )

    return share_copies(record(step, inputs))


def error(found, expected):
    return float((found.double() - expected).abs().max().detach() / expected.abs().max())


def rows(device, quick):
    repeats, calls = (1, 1) if quick else (5, 4)
    for name, case in list(CASES.items())[:2] if quick else CASES.items():
        torch.manual_seed(SEED)
        inputs = problem(case)
        few = [value[:1, :8].double() for value in inputs[::2]]
        exact = [few[0].requires_grad_(), inputs[1][:1].double().requires_grad_()]
        truth = grouped(*exact, few[1], around(case))

        def timed(run, inputs=inputs):
            return device_ms(run, [inputs, tuple(map(torch.clone, inputs))], repeats, calls)

        times = {way: {j: timed(run) for j, run in zip(JOBS, made, strict=True)} for way, made in ways(case).items()}
        run = chosen(case, inputs)
        ours = timed(run)
        found = [value[:1, :8] for value in run(*inputs)[:2]]  # the gradient to kernels is of all pictures
        part = inputs[0][:1, :8].contiguous(), inputs[1][:1].contiguous(), inputs[2][:1, :8].contiguous()
        found.append(chosen(case, part)(*part)[2])
        x, weight = (value.clone().requires_grad_() for value in inputs[:2])
        peer = device_ms(lambda g: grouped(x, weight, g, around(case)), [inputs[2:], inputs[2:]], repeats, calls)  # noqa: B023
        work = 6 * inputs[2].numel() * inputs[1][0, 0].numel()
        copied = device_ms(lambda g: multiplied(x, weight, g, around(case)), [inputs[2:], inputs[2:]], repeats, calls)  # noqa: B023
        yield {
            "case": name,
            "shape": case,
            "ways": times,
            "milliseconds": ours,
            "peer": peer,
            "products": copied,
            "ratio": peer / ours,
            "want": None,
            "flops_per_s": work / ours * 1e3,
            "errors": [error(a, b) for a, b in zip(found, truth, strict=True)],
        }
        torch.cuda.empty_cache()


def _shape(row):
    m, b, c, size, o, kernel, _ = row["shape"]
    return f"{m} × {b} × {c}×{size[0]}×{size[1]}, {o} of {kernel[0]}×{kernel[1]}"


COLUMNS = {
    "convolution": lambda r: r["case"],
    "networks, pictures, kernels": _shape,
    "ours, ms": lambda r: f"{r['milliseconds']:.2f}",
    "TFLOP/s": lambda r: f"{r['flops_per_s'] / 1e12:.0f}",
    "products, ms": lambda r: f"{r['products']:.2f}",
    "`vmap`, ms": lambda r: f"{r['peer']:.2f}",
    "ratio": lambda r: f"**{r['ratio']:.1f}×**",
    "error": lambda r: f"{max(r['errors']):.0e}",
}


if __name__ == "__main__":
    script(__file__)
