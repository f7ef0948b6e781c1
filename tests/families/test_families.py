"""Every family through the laws, and the few facts that are particular to one."""

import copy
import math

import pytest
import torch

from pstn.families import TPS, Affine, Compose, Crop, Family, Projective, Rotation, Similarity, Translation
from pstn.testing import assert_family

FAMILIES = [
    Translation(1),
    Translation(2),
    Translation(3),
    Rotation(),
    Rotation(3),
    Rotation(size=(20, 31)),
    Crop(1),
    Crop(2),
    Crop(3),
    Crop(2, scale="linear"),
    Similarity(),
    Similarity(3),
    Similarity(scale="linear"),
    Similarity(3, scale="linear"),
    Similarity(size=(9, 4)),
    Affine(1),
    Affine(2),
    Affine(3),
    Affine(2, scale="linear"),
    Affine(3, scale="linear"),
    Affine(3, size=(3, 4, 5)),
    Projective(),
    TPS(),
    TPS(3, ndim=1),
    TPS(2, ndim=3),
    Compose(Similarity(), TPS(3)),
    Compose(Translation(1), Crop(1)),
]


def label(family):
    options = [str(getattr(family, "scale", "")), str(getattr(family, "size", "") or "")]
    return "-".join([type(family).__name__, str(family.ndim), *filter(None, options)])


@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_laws(family):
    assert_family(family, scale=0.1)


def test_the_laws_notice_a_wrong_family():
    class Stretch(Family):
        ndim, names = 2, ("s",)

        def move(self, theta, points):
            return points * (1.1 + theta[..., None])  # not the identity at zero

    with pytest.raises(AssertionError, match="theta = 0 moves points"):
        assert_family(Stretch())


@pytest.mark.parametrize("family", [f for f in FAMILIES if hasattr(f, "matrix")], ids=label)
def test_matrix_and_parameters_are_inverse(family):
    theta = 0.2 * torch.randn(20, family.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(family.from_matrix(family.matrix(theta)), theta, atol=1e-12)


@pytest.mark.parametrize("scale", ["exp", "linear"])
def test_similarity_is_equation_1_of_the_paper(scale):
    r, s, x, y = 0.4, 0.25, 0.1, -0.3
    matrix = Similarity(scale=scale).matrix(torch.tensor([r, s, x, y], dtype=torch.float64))
    size = math.exp(s) if scale == "exp" else 1 + s
    expected = [
        [size * math.cos(r), -size * math.sin(r), x],
        [size * math.sin(r), size * math.cos(r), y],
        [0, 0, 1],
    ]
    assert torch.allclose(matrix, torch.tensor(expected, dtype=torch.float64))


def test_half_turns_in_space_keep_their_digits():
    axis = torch.nn.functional.normalize(torch.randn(50, 3, dtype=torch.float64), dim=-1)
    for angle in (math.pi, math.pi - 1e-7, 3.0, 1e-7):
        matrix = Rotation(3).matrix(angle * axis)
        again = Rotation(3).matrix(Rotation(3).from_matrix(matrix))
        assert torch.allclose(again, matrix, atol=1e-12)


def test_a_rotation_is_rigid_in_pixels_when_it_knows_the_size():
    height, width = 30, 50
    points = torch.tensor([[0.3, 0.1], [-0.2, 0.5], [0.0, 0.0]], dtype=torch.float64)
    pixels = torch.tensor([width / 2, height / 2], dtype=torch.float64)

    def distances(p):
        return torch.pdist(p * pixels)

    theta = torch.tensor([0.7], dtype=torch.float64)
    rigid, sheared = Rotation(size=(height, width))(theta, points), Rotation()(theta, points)
    assert torch.allclose(distances(rigid), distances(points))
    assert not torch.allclose(distances(sheared), distances(points), rtol=1e-2)


def test_tps_moves_its_control_points_as_told_and_keeps_affine_maps():
    for ndim, n in ((1, 5), (2, 4), (3, 3)):
        family = TPS(n, ndim=ndim).double()
        theta = torch.randn(family.dim, dtype=torch.float64)
        expected = family.control + theta.view(-1, ndim)
        assert torch.allclose(family(theta, family.control), expected, atol=1e-10)
        slope = torch.randn(ndim, ndim, dtype=torch.float64)
        theta = (family.control @ slope.T + 0.5).flatten()
        points = torch.rand(20, ndim, dtype=torch.float64)
        assert torch.allclose(family(theta, points), points + points @ slope.T + 0.5, atol=1e-9)


def test_projective_sends_what_lies_behind_the_horizon_outside():
    theta = torch.zeros(8)
    theta[6] = 2.0  # denominator 1 + 2x
    moved = Projective()(theta, torch.tensor([[-0.9, 0.0], [0.9, 0.0]]))
    assert (moved[0].abs() > 100).all()
    assert torch.allclose(moved[1], torch.tensor([0.9 / 2.8, 0.0]))


def test_compose_is_a_warp_after_a_warp():
    a, b = torch.tensor([0.3, 0.2]), torch.tensor([0.5])
    p = torch.rand(6, 2)
    chained = Compose(Translation(), Rotation())
    assert torch.allclose(chained(torch.cat([a, b]), p), Translation()(a, Rotation()(b, p)))


@pytest.mark.parametrize("size", [None, (30, 40), (20, 30, 40)])
@pytest.mark.parametrize("scale", [0.7, 0.0, -0.5])
def test_similarities_compose_with_their_slopes_through_a_scale_of_zero(scale, size):
    """By way of a matrix, the angle and its slopes are lost there."""
    family = Similarity(2 if size is None else len(size), "linear", size).double()
    points = torch.rand(6, family.ndim, dtype=torch.float64)
    outer, inner = 0.3 * torch.randn(2, family.dim, dtype=torch.float64)
    inner[family.names.index("scale")] = scale - 1

    def whole(inner):
        return family(family.compose(outer, inner), points)

    def chained(inner):
        return family(outer, family(inner, points))

    for f in (lambda f: f(inner), lambda f: torch.autograd.functional.jacobian(f, inner)):
        torch.testing.assert_close(f(whole), f(chained))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Similarity()(torch.zeros(3), torch.zeros(1, 2)),
            r"3 numbers, Similarity needs 4 \(rotation",
        ),
        (lambda: Crop(scale="log"), "scale is 'log'; expected one of 'exp', 'linear'"),
        (lambda: Translation(4), "expected 1 .*, 2 .* or 3"),
        (lambda: Rotation(1), "rotations need 2 or 3"),
        (lambda: Rotation(size=(3, 4, 5)), "expected 2 positive numbers"),
        (lambda: Similarity(size=(0, 4)), "expected 2 positive numbers"),
        (lambda: Affine(scale="linear", size=(3, 4)), "raw matrix"),
        (lambda: TPS(1), "at least 2 control points"),
        (lambda: TPS(4, ndim=4), "expected 1, 2 or 3"),
        (lambda: Compose(), "at least one family"),
        (lambda: Compose(Crop(1), Crop(2)), "same space"),
        (lambda: Similarity().from_matrix(torch.eye(4)), r"homogeneous \(..., 3, 3\)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_steep_tilts_are_inverted_wherever_there_is_a_place_in_the_picture():
    generator = torch.Generator().manual_seed(0)
    theta = 0.5 * torch.randn(500, 8, dtype=torch.float64, generator=generator)
    points = 2 * torch.rand(500, 5, 2, dtype=torch.float64, generator=generator) - 1
    there = Projective()(theta, points)
    back = Projective().invert(theta, there)
    inside = (there.abs() <= 1).all(-1)
    assert inside.double().mean() > 0.5
    assert torch.allclose(back[inside], points[inside], atol=1e-6)
    theta = torch.tensor([0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 1.5, 0.0])  # the output's centre is behind the horizon
    assert torch.allclose(Projective().invert(theta, torch.tensor([[0.8, 0.0]])), torch.tensor([[0.5, 0.0]]))
    assert (Projective().invert(theta, torch.tensor([[0.0, 0.0]])) > 1e3).all()


def test_a_family_without_inverse_says_so():
    with pytest.raises(TypeError, match="TPS has no inverse"):
        TPS().inverse(torch.zeros(32))
    with pytest.raises(TypeError, match="TPS has no compose"):
        TPS().compose(torch.zeros(32), torch.zeros(32))


def test_a_fold_that_cannot_be_inverted_comes_back_as_nan():
    theta = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)  # both ends onto the middle: T(p) = 0
    assert TPS(3, ndim=1).invert(theta, torch.tensor([[0.5]], dtype=torch.float64)).isnan().all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_points_come_back_where_no_gradients_are_recorded(family, mode):
    with mode():
        theta, points = 0.05 * torch.randn(2, family.dim).double(), torch.rand(5, family.ndim).double() - 0.5
        assert torch.allclose(family.invert(theta, family(theta, points)), points.expand(2, -1, -1))


@pytest.mark.parametrize("family", [*FAMILIES, TPS(8)], ids=label)
def test_a_cast_moves_no_point(family):
    """Weights are what 16 bits are for: tables rounded to them would bend the map."""
    theta, points = 0.1 * torch.randn(3, family.dim).double(), torch.rand(5, family.ndim).double() * 2 - 1
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert torch.equal(copy.deepcopy(family).to(dtype)(theta, points), family(theta, points))
    assert all(table.is_meta for table in copy.deepcopy(family).to("meta").buffers())


@pytest.mark.parametrize("family", [TPS(100, ndim=1), TPS(16), TPS(8, ndim=3)], ids=label)
def test_many_control_points_lose_no_digits(family):
    theta, points = 0.1 * torch.randn(2, family.dim), torch.rand(50, family.ndim) * 2 - 1
    assert (family(theta, points) - family(theta.double(), points.double())).abs().max() < 1e-6


def test_a_family_without_memory_is_given_some():
    """As models are that are described before they are made."""
    with torch.device("meta"):
        model = torch.nn.Sequential(TPS(3), torch.nn.Linear(2, 2))
    model.to_empty(device="cpu")
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    assert {buffer.device.type for buffer in model.buffers()} == {"cpu"}


@pytest.mark.parametrize("family", [Similarity(scale="linear"), Affine(scale="linear"), Projective()], ids=label)
def test_a_flat_map_has_no_inverse_and_leaves_the_others_theirs(family):
    theta = torch.zeros(2, family.dim, dtype=torch.float64)
    if isinstance(family, Similarity):
        theta[0, 1] = -1.0
    else:
        theta[0] = family.from_matrix(torch.diag(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)))
    points = torch.rand(5, 2, dtype=torch.float64)
    found = family.invert(theta, points)
    assert found[0].isnan().all()
    assert torch.equal(found[1], points)
    inverse = family.inverse(theta)
    assert inverse[0].isnan().all()
    assert torch.equal(inverse[1], theta[1])


def test_points_come_back_from_a_map_whose_inverse_has_no_parameters():
    """Parameters are clamped to 1,000, and this map shrinks 2,000 times."""
    theta = torch.tensor([-0.9995, 0.4, -0.4], dtype=torch.float64)
    points = torch.rand(5, 2, dtype=torch.float64)
    family = Crop(scale="linear")
    torch.testing.assert_close(family.invert(theta, family(theta, points)), points)
