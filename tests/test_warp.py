"""Warping: the laws on every family and size, outside oracles, and what happens to bad input."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pstn.families import TPS, Affine, Compose, Crop, Projective, Rotation, Similarity, Translation
from pstn.grid import from_pixels, identity_grid, sample, to_pixels
from pstn.testing import assert_integer_shift, assert_warp
from pstn.warp import _pixels_moved, warp

CASES = [
    (Translation(1), (9,)),
    (Crop(1), (8,)),
    (Affine(1), (7,)),
    (TPS(3, ndim=1), (6,)),
    (Translation(2), (6, 7)),
    (Rotation(), (7, 7)),
    (Crop(2), (8, 5)),
    (Similarity(), (5, 8)),
    (Affine(2), (6, 6)),
    (Projective(), (6, 9)),
    (TPS(3), (7, 6)),
    (Compose(Similarity(), TPS(2)), (5, 6)),
    (Translation(3), (3, 4, 5)),
    (Similarity(3), (4, 3, 5)),
    (Affine(3), (3, 3, 3)),
]


@pytest.mark.parametrize(("family", "size"), CASES, ids=lambda v: getattr(v, "label", None))
def test_laws(family, size):
    assert_warp(family, size, scale=0.1)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_whole_pixels_move_exactly(size):
    assert_integer_shift(size)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_pixels_and_positions_are_inverse(size):
    grid = identity_grid(size, dtype=torch.float64)
    indices = torch.stack(torch.meshgrid(*[torch.arange(n) for n in size], indexing="ij")[::-1], dim=-1)
    assert torch.allclose(to_pixels(grid, size), indices.double())
    assert torch.allclose(from_pixels(indices.double(), size), grid)


def test_one_pixel_images_survive():
    x = torch.rand(2, 1, 1, 1)
    assert torch.allclose(warp(x, Similarity(), torch.zeros(2, 4), antialias=True), x)


def pixel_frame(size):
    """The matrix from normalised positions to pixel indices, x first."""
    frame = torch.eye(3, dtype=torch.float64)
    for axis, n in enumerate(size[::-1]):
        frame[axis, axis], frame[axis, 2] = n / 2, (n - 1) / 2
    return frame


@pytest.mark.parametrize("padding", ["fill", "border"])
@pytest.mark.parametrize("family", [Affine(scale="linear"), Affine(), Projective()], ids=lambda f: f.label)
def test_affine_and_projective_images_agree_with_kornia(family, padding):
    kornia = pytest.importorskip("kornia")
    x, out = torch.rand(4, 3, 11, 17, dtype=torch.float64), (9, 8)
    theta = 0.1 * torch.randn(4, family.dim, dtype=torch.float64)
    ours = warp(x, family, theta, padding=padding, size=out)
    in_pixels = pixel_frame((11, 17)) @ family.matrix(theta) @ torch.linalg.inv(pixel_frame(out))
    theirs = kornia.geometry.transform.warp_perspective(
        x, torch.linalg.inv(in_pixels), out, padding_mode={"fill": "zeros"}.get(padding, padding), align_corners=True
    )
    assert torch.allclose(ours, theirs, atol=1e-9)


def test_rotation_agrees_with_kornia_and_turns_the_same_way():
    kornia = pytest.importorskip("kornia")
    x = torch.rand(2, 1, 12, 16, dtype=torch.float64)
    angle = 0.5
    theirs = kornia.geometry.transform.rotate(
        x, torch.full((2,), angle * 180 / torch.pi, dtype=x.dtype), align_corners=True
    )
    ours = warp(x, Rotation(size=(12, 16)), torch.full((2, 1), angle, dtype=x.dtype))
    assert torch.allclose(ours, theirs, atol=1e-9)  # same picture, same sign: a positive angle turns anticlockwise


def test_tps_agrees_with_scipy_and_kornia():
    kornia = pytest.importorskip("kornia")
    interpolate = pytest.importorskip("scipy.interpolate")
    family = TPS(4)
    theta = 0.1 * torch.randn(family.dim, dtype=torch.float64)
    p = 2 * torch.rand(40, 2, dtype=torch.float64) - 1
    spline = interpolate.RBFInterpolator(
        family.control.numpy(), (family.control.flatten() + theta).view(-1, 2).numpy(), kernel="thin_plate_spline"
    )
    ours = family(theta, p)
    assert torch.allclose(ours, torch.from_numpy(spline(p.numpy())), atol=1e-9)
    # kornia solves for centres at the target points, another spline; its evaluation, with our coefficients, agrees
    coefficients = family.solved @ theta.view(-1, 2)
    slopes = coefficients[-3:] + torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    theirs = kornia.geometry.transform.warp_points_tps(
        p[None], family.control[None], 2 * coefficients[None, :-3], slopes[None]
    )
    assert torch.allclose(ours, theirs[0], atol=1e-9)


def test_a_window_is_a_crop_in_front():
    x, theta = torch.rand(3, 2, 9, 9, dtype=torch.float64), 0.2 * torch.randn(2, 3, 4, dtype=torch.float64)
    family, window = Similarity(), torch.tensor([0.5, 0.25, -0.25], dtype=torch.float64)
    crop = torch.tensor([0.5, 0.25, -0.25], dtype=torch.float64)
    crop = torch.stack([torch.zeros(()).double(), crop[0].log(), crop[1], crop[2]])
    expected = warp(x, family, family.compose(crop.expand(2, 3, 4), theta))
    for shape in ((3,), (3, 3), (2, 3, 3)):
        assert torch.allclose(warp(x, family, theta, window=window.expand(*shape)), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [28, 3000, 40000])
def test_a_grid_in_16_bits_is_the_grid_rounded(n, dtype):
    exact = identity_grid((n,), dtype=torch.float64)
    assert (identity_grid((n,), dtype=dtype) - exact).abs().max() <= torch.finfo(dtype).eps / 2


def test_fill_is_what_lies_outside_and_does_not_bleed_in():
    x = torch.full((1, 2, 6, 6), 0.5)
    fill = torch.tensor([3.0, -1.0])
    out = warp(x, Translation(), torch.tensor([[1.0, 0.0]]), fill=fill)  # half of it
    assert torch.allclose(out[0, :, :, :3], torch.full((2, 6, 3), 0.5))
    assert torch.allclose(out[0, :, :, 3:], fill.view(2, 1, 1).expand(2, 6, 3))


@pytest.mark.parametrize("mark", [float("nan"), float("inf"), -1e9])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_a_mark_for_what_lies_outside_leaves_the_picture_as_it_is(mark, mode):
    x, theta = torch.rand(2, 3, 7, 9), torch.tensor([[0.3, -0.2], [0.0, 0.1]], requires_grad=True)
    marked, plain = (warp(x, Translation(), theta, fill=f, mode=mode) for f in (mark, 0.0))
    inside = warp(torch.ones_like(x), Translation(), theta, mode=mode) > 0.999
    assert torch.equal(marked[inside], plain[inside])
    assert not torch.isclose(marked[~inside], plain[~inside]).any()
    still = warp(x, Translation(), torch.zeros(2, 2), fill=mark, mode=mode)
    torch.testing.assert_close(still, x, atol=1e-5, rtol=0)
    if mode == "linear":
        grads = [torch.autograd.grad(out[inside].sum(), theta)[0] for out in (marked, plain)]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("mark", [float("nan"), float("inf"), -1e9])
@pytest.mark.parametrize("size", [None, (6, 6), (3, 3)])
def test_a_mark_leaves_the_picture_as_it_is_with_antialiasing(mark, size):
    x, theta = torch.rand(2, 3, 12, 12), torch.tensor([[0.2, 0.1, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]])
    out, plain, inside = (
        warp(a, Similarity(), theta, fill=fill, antialias=True, size=size)
        for a, fill in ((x, mark), (x, 0.0), (torch.ones_like(x), 0.0))
    )
    whole = inside > 1 - 1e-5
    assert whole[1].all()
    torch.testing.assert_close(out[whole], plain[whole], atol=1e-5, rtol=0)
    assert not torch.isclose(out[~whole], plain[~whole]).any()


def test_antialiasing_averages_what_a_pixel_covers():
    x = torch.rand(1, 1, 64, 64)
    theta = Similarity().zeros(1)
    small = warp(x, Similarity(), theta, size=(8, 8), antialias=True)
    mean = F.avg_pool2d(x, 8)
    aliased = warp(x, Similarity(), theta, size=(8, 8))
    error = (small - mean).square().mean().sqrt()
    assert error < 0.3 * (aliased - mean).square().mean().sqrt()
    stripes = (torch.arange(64) % 2).float().expand(1, 1, 64, 64)
    assert (warp(stripes, Similarity(), theta, size=(8, 8), antialias=True) - 0.5).abs().max() < 1e-5


def test_antialiasing_has_a_gradient():
    x = torch.rand(1, 1, 16, 16, dtype=torch.float64)
    theta = torch.tensor([[0.1, 0.9, 0.05, -0.02]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: warp(x, Similarity(), t, size=(5, 5), antialias=True), theta)


def test_antialiasing_has_a_gradient_where_all_pixels_look_at_one_point():
    theta = torch.tensor([[-1.0, 0.1, 0.2]], requires_grad=True)  # a scale of zero
    warp(torch.rand(1, 2, 6, 7), Crop(scale="linear"), theta, antialias=True).square().sum().backward()
    assert theta.grad.isfinite().all()
    assert theta.grad.any()


@pytest.mark.parametrize(("family", "size"), CASES, ids=lambda v: getattr(v, "label", None))
def test_pixels_move_as_points_do(family, size):
    """Matrices move a whole grid axis by axis; it is the same map."""
    theta = (0.3 * torch.randn(2, 3, family.dim, dtype=torch.float64)).requires_grad_()
    moved = _pixels_moved(family, theta, size)
    points = family(theta, identity_grid(size, dtype=torch.float64).reshape(-1, len(size)))
    torch.testing.assert_close(moved.flatten(2, -2), points)
    weights = torch.randn(moved.shape, dtype=torch.float64)
    found = torch.autograd.grad(moved, theta, weights)
    torch.testing.assert_close(found, torch.autograd.grad(points, theta, weights.flatten(2, -2)))


def test_samples_do_not_copy_the_image(monkeypatch):
    seen = []
    original = F.grid_sample
    monkeypatch.setattr(F, "grid_sample", lambda x, *a, **k: (seen.append(x.shape), original(x, *a, **k))[1])
    warp(torch.rand(3, 1, 5, 5), Rotation(), torch.zeros(10, 3, 1))
    assert seen == [(3, 1, 5, 5)]


@pytest.mark.parametrize(
    ("error", "call", "message"),
    [
        (ValueError, lambda x: warp(x[0], Similarity(), torch.zeros(2, 4)), "acts on 2-D arrays"),
        (ValueError, lambda x: warp(x[0, 0], Similarity(), torch.zeros(2, 4)), r"expected series \(B, C, L\)"),
        (TypeError, lambda x: warp(x.long(), Similarity(), torch.zeros(2, 4)), "expected floating point"),
        (ValueError, lambda x: warp(x, Similarity(), torch.zeros(2, 3)), "theta has 3 numbers, Similarity needs 4"),
        (ValueError, lambda x: warp(x, Similarity(), torch.zeros(3, 4)), r"needs \(2, 4\) or \(S, 2, 4\)"),
        (ValueError, lambda x: warp(x, Similarity(), torch.zeros(4)), r"needs \(2, 4\) or \(S, 2, 4\)"),
        (ValueError, lambda x: warp(x, Crop(1), torch.zeros(2, 2)), "acts on 1-D arrays"),
        (
            ValueError,
            lambda x: warp(x, Similarity(), torch.zeros(2, 4), padding="zeros"),
            "'border', 'reflect'",
        ),
        (ValueError, lambda x: warp(x, Similarity(), torch.zeros(2, 4), mode="cubic"), "'linear', 'nearest'"),
        (ValueError, lambda x: warp(x, Similarity(), torch.zeros(2, 4), size=(0, 3)), "2 positive numbers"),
        (ValueError, lambda x: warp(x, Similarity(), torch.zeros(2, 4), size=(3,)), "2 positive numbers"),
        (
            ValueError,
            lambda x: warp(x, Similarity(), torch.zeros(2, 4), mode="nearest", antialias=True),
            "needs mode='linear'",
        ),
        (ValueError, lambda x: warp(x[:, :, :0], Similarity(), torch.zeros(2, 4)), "at least one entry"),
        (ValueError, lambda x: sample(x, torch.zeros(3, 5, 2)), r"need \(2, ..., 2\)"),
        (
            ValueError,
            lambda x: warp(x, Similarity(), torch.zeros(2, 4), fill=torch.ones(3)),
            "3 numbers for 1 channels",
        ),
    ],
)
def test_bad_input_is_named(error, call, message):
    with pytest.raises(error, match=message):
        call(torch.rand(2, 1, 5, 5))
