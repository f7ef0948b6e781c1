"""The fused warp against the plain torch path in float64: values and both gradients, whatever the input looks like."""

import math
from itertools import product

import pytest
import torch

from pstn import kernels
from pstn.families import TPS, Affine, Compose, Projective, Similarity, Translation
from pstn.kernels import launch
from pstn.warp import warp

CASES = [
    (Affine(1), (7,), (9,)),
    (Affine(2), (5, 6), (6, 7)),
    (Projective(), (5, 6), (4, 5)),
    (TPS(3), (5, 6), (5, 6)),
    (Compose(Similarity(), TPS(2)), (5, 4), (3, 6)),
    (Affine(3), (3, 4, 5), (2, 3, 4)),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def draw(family, shape, samples=2, scale=0.2, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(*shape, generator=generator).to(dtype)
    return x, scale * torch.randn(samples, shape[0], family.dim, generator=generator)


def differentiated(x, family, theta, **options):
    """Values, and gradients to array and parameters of a random linear function of them."""
    x, theta = x.detach().requires_grad_(), theta.detach().requires_grad_()
    out = warp(x, family, theta, **options)
    weights = torch.rand(out.shape, generator=torch.Generator().manual_seed(9)).to(x.dtype)
    to_x, to_theta = torch.autograd.grad(out, (x, theta), weights.to(out.dtype))
    return out, to_x, to_theta


def check(x, family, theta, **options):
    found = differentiated(x, family, theta, **options)
    truth = differentiated(x.double(), family, theta.double(), **options)
    for name, a, b in zip(("values", "gradient to x", "gradient to theta"), found, truth, strict=True):
        error = (a.double() - b).abs().max() / b.abs().max().clamp_min(1e-3)
        assert error < TOLERANCE[x.dtype], (name, error)
    assert found[0].dtype == found[1].dtype == x.dtype
    return found


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", ["fill", "border", "reflect"])
@pytest.mark.parametrize(("family", "shape", "size"), CASES, ids=lambda v: getattr(v, "label", None))
def test_equals_the_reference(family, shape, size, padding, mode):
    x, theta = draw(family, (1, 2 if family.ndim < 3 else 1, *shape))
    check(x, family, theta, size=size, padding=padding, mode=mode)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", [Affine(), TPS(2)])
def test_half_precision_is_stored_but_not_computed_with(family, dtype):
    x, theta = draw(family, (1, 2, 5, 6), dtype=dtype)
    check(x, family, theta)


@pytest.mark.parametrize(
    "laid",
    [
        lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
        lambda x: torch.stack([x, -x], dim=-1).flatten(-2)[..., ::2],
        lambda x: x[:1, :1].expand(2, 2, 5, 6),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    ],
    ids=["channels last", "every other", "expanded", "transposed"],
)
def test_strides_as_they_come(laid):
    x, theta = draw(Affine(), (2, 2, 5, 6), samples=1)
    x = laid(x)
    assert not x.is_contiguous()
    check(x, Affine(), theta)
    # the gradient that comes back may be laid out in any way too
    out = warp(x, Affine(), theta.requires_grad_())
    (one,) = torch.autograd.grad(out, theta, torch.ones(()).expand_as(out), retain_graph=True)
    (two,) = torch.autograd.grad(out, theta, torch.ones_like(out))
    assert torch.allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 5, 8])
def test_any_number_of_channels(channels):
    x, theta = draw(Projective(), (1, channels, 3, 4), samples=1)
    check(x, Projective(), theta)


@pytest.mark.parametrize("fill", [0.7, torch.tensor([0.3, -0.5])], ids=["one", "one a channel"])
@pytest.mark.parametrize("family", [Similarity(), TPS(2)])
def test_fill(family, fill):
    x, theta = draw(family, (1, 2, 5, 6), scale=0.5)
    check(x, family, theta, fill=fill)


@pytest.mark.parametrize("mark", [math.nan, math.inf, -1e9])
@pytest.mark.parametrize("family", [Affine(), TPS(2)])
def test_a_mark_for_what_lies_outside_leaves_the_picture_as_it_is(family, mark):
    x = torch.rand(1, 2, 7, 9)
    torch.testing.assert_close(warp(x, family, family.zeros(1), fill=mark), x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", [Similarity(), Projective(), TPS(2)])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3)], ids=["one", "one an array", "one a warp"])
def test_window(family, shape):
    x, theta = draw(family, (2, 1, 4, 5))
    window = torch.tensor([0.6, 0.1, -0.2]) + 0.05 * torch.rand(shape, generator=torch.Generator().manual_seed(1))

    def gradient(dtype):
        w = window.to(dtype).requires_grad_()
        out = warp(x.to(dtype), family, theta.to(dtype), window=w)
        return out, torch.autograd.grad(out.square().sum(), w)[0]

    for a, b in zip(gradient(torch.float32), gradient(torch.float64), strict=True):
        assert torch.allclose(a.double(), b, atol=1e-4)


@pytest.mark.parametrize("padding", ["fill", "border", "reflect"])
def test_splines_with_many_control_points(padding, monkeypatch):
    """They store their displacements; those with few compute them on the way."""
    monkeypatch.setattr(kernels, "_REGISTERS", 17)
    for points in (2, 3):
        x, theta = draw(TPS(points), (1, 2, 4, 5))
        check(x, TPS(points), theta, padding=padding)


@pytest.mark.parametrize("padding", ["fill", "border", "reflect"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -1e30])
def test_wild_parameters_give_finite_results(value, padding):
    for family in (Affine(), Projective()):
        theta = torch.full((1, family.dim), value)
        found = differentiated(torch.rand(1, 1, 4, 4), family, theta, padding=padding)
        assert all(f.isfinite().all() for f in found)


def test_zooms_and_flat_warps_still_give_their_image_gradient():
    """Most warps gather; those that enlarge very much or flatten the picture scatter: together nothing is lost."""
    raw = Affine(scale="linear")
    x, theta = draw(raw, (1, 1, 7, 8), samples=6, scale=0.4)
    theta[1, :, :4] = torch.tensor([-0.98, 0.0, 0.0, -0.97])  # a zoom by fifty
    theta[2, :, :4] = torch.tensor([-1.0, 0.0, 0.0, -1.0])  # everything looks at one point
    theta[3, :, :4] = torch.tensor([-0.5, 0.5, 0.5, -0.5])  # everything looks at one line
    theta[4, :, :4] = torch.tensor([-1.0, 1.0, 1.0, -1.0])  # the diagonal is the mirror
    theta[5, :, :4] = torch.tensor([9.0, 0.0, 0.0, 9.0])  # far away
    check(x, raw, theta, size=(15, 16))


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("family", "padding"), [(Affine(), "fill"), (TPS(2), "reflect"), (Affine(1), "border")], ids=["2-D", "TPS", "1-D"]
)
def test_deterministic_mode_gives_the_same_bits(family, padding, deterministic):
    x, theta = draw(family, (1, 1, *[4] * family.ndim))
    one = check(x, family, theta, padding=padding)
    two = differentiated(x, family, theta, padding=padding)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_deterministic_mode_does_not_hide_an_infinite_gradient(deterministic):
    x = torch.rand(1, 1, 3, 3, requires_grad=True)
    out = warp(x, Similarity(), torch.zeros(1, 4))
    (to_x,) = torch.autograd.grad(out, x, torch.full_like(out, torch.inf))
    assert not to_x.isfinite().any()


def test_more_warps_than_a_launch_counts(monkeypatch):
    whole = {}
    for shape in ((1, 3), (3, 1)):
        x, theta = draw(Affine(), (shape[1], 1, 4, 5), samples=shape[0])
        whole[shape] = differentiated(x, Affine(), theta)
    monkeypatch.setattr(launch, "MOST", 2)
    for shape, expected in whole.items():
        x, theta = draw(Affine(), (shape[1], 1, 4, 5), samples=shape[0])
        for a, b in zip(differentiated(x, Affine(), theta), expected, strict=True):
            assert torch.allclose(a, b, atol=1e-6)


def test_every_pixel_is_written_at_every_size():
    for family, size in [(Translation(1), (200,)), (Translation(2), (1, 1)), (Translation(2), (9, 33))]:
        x = torch.full((1, 3, *[4] * family.ndim), 2.0)
        out = warp(x, family, family.zeros(1), size=size, padding="border")
        assert torch.equal(out, torch.full_like(out, 2.0)), size


def test_pixels_that_share_corners_are_as_others():
    # An offset beyond a row's end is another pixel's: what is outside must stay outside.
    x = torch.arange(1.0, 31.0).view(1, 1, 6, 5)
    for shift in ([0.0, 0.0], [0.4, 0.0], [-0.4, 0.0], [0.4, 2 / 6], [-0.4, -2 / 6], [2.0, 0.1], [0.3, 1.9]):
        theta, fill = torch.tensor([shift]), torch.tensor([7.0])
        for size in ((6, 5), (7, 3), (1, 9), (12, 4)):
            found = warp(x, Translation(2), theta, size=size, fill=fill)
            with kernels.reference():
                assert torch.allclose(found, warp(x, Translation(2), theta, size=size, fill=fill), atol=1e-5), (
                    shift,
                    size,
                )


def test_runs_and_groups_cover_everything_once():
    for size, channels, warps in product([(5,), (28, 28), (224, 224), (7, 9, 11)], [1, 3, 5, 64, 96], [1, 10, 5000]):
        options = ({}, {"backward": True}, *([{"rows": 2}] if len(size) == 2 else []))
        for c in (launch.cut(size, channels, warps, **option) for option in options):
            assert (c.runs - 1) * c.length < c.tiles <= c.runs * c.length
            assert (c.groups - 1) * c.group < channels <= c.groups * c.group
            assert channels % c.chunk == 0
            assert c.group % c.chunk == 0
            assert len(size) != 2 or c.tiles * c.block * c.rows >= math.prod(size)


def test_who_goes_to_the_kernels(monkeypatch):
    seen = []
    monkeypatch.setattr(kernels.operators, "warp", lambda *a: seen.append(a) or (_ for _ in ()).throw(KeyError))
    x, theta = torch.rand(1, 1, 4, 4), torch.zeros(1, 4)
    with pytest.raises(KeyError):
        warp(x, Similarity(), theta)
    assert len(seen) == 1
    warp(x.double(), Similarity(), theta)
    warp(x, Similarity(), theta.double())
    warp(x, Similarity(), theta, antialias=True)
    warp(x, Similarity(), theta, fill=torch.zeros(1, requires_grad=True))
    with kernels.reference():
        warp(x, Similarity(), theta)
    assert len(seen) == 1
    monkeypatch.setattr(kernels, "_DEVICES", frozenset({"cuda"}))
    warp(x, Similarity(), theta)
    assert len(seen) == 1


@pytest.mark.parametrize("length", [1, 3, 16])
def test_runs_of_every_length_write_every_pixel_once(length, monkeypatch):
    """Two tiles are looked at together; the last of an odd run is alone."""
    plain = launch.cut.__wrapped__
    monkeypatch.setattr(launch, "ENOUGH", 1)
    monkeypatch.setattr(launch, "BLOCK", 32)
    monkeypatch.setattr(launch, "cut", lambda *a, **o: plain(*a, **{"longest": length, **o}))
    x, theta = draw(Affine(), (1, 2, 9, 21))
    check(x, Affine(), theta)


def test_unknown_padding_and_mode_and_fills_of_other_channels():
    with pytest.raises(ValueError, match="padding"):
        warp(torch.rand(1, 1, 4, 4), Similarity(), torch.zeros(1, 4), padding="zeros")
    with pytest.raises(ValueError, match="mode"):
        warp(torch.rand(1, 1, 4, 4), Similarity(), torch.zeros(1, 4), mode="cubic")
    with pytest.raises(ValueError, match="fill has 2 numbers for 1 channels"):
        warp(torch.rand(1, 1, 4, 4), Similarity(), torch.zeros(1, 4), fill=torch.ones(2))
