"""Alignment: what it must leave alone, what it must find, and what it says about bad input."""

import numpy as np
import pytest
import torch

from pstn.align import Alignment, align, choose
from pstn.align.arrays import blur, read, resample
from pstn.align.choose import log_loss
from pstn.align.joint import Matcher
from pstn.align.search import minimise
from pstn.data import cbf
from pstn.families import Compose, Translation
from pstn.families.cpab import CPAB
from pstn.grid import identity_grid
from pstn.warp import warp

QUICK = {"rounds": 2, "evaluations": 6, "passes": (0.05, 0.0), "progress": False}


def shape(t, kind=0):
    """Two smooth shapes, flat at the ends so that a warp near the border changes little."""
    bumps = (
        ((-0.4, 0.12, 1.0), (0.1, 0.15, -0.8), (0.5, 0.1, 0.6)) if kind == 0 else ((-0.2, 0.2, 1.0), (0.4, 0.1, 0.5))
    )
    return sum(height * torch.exp(-(((t - place) / width) ** 2)) for place, width, height in bumps)


def bent(n=12, length=120, kind=0, seed=0, scale=0.02):
    """One shape, seen through random diffeomorphisms."""
    family = CPAB(8)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        theta = family.prior(0.5, scale).sample((n,)).double()
    grid = identity_grid((length,), dtype=torch.float64)
    return shape(family(theta, grid)[..., 0], kind)[:, None].float()


@pytest.fixture(scope="module")
def x():
    return bent().double()  # in float32 the laws below hold as well, but less exactly


@pytest.fixture(scope="module")
def found(x):
    return align(x, progress=False)


# --- what it finds


def test_one_shape_through_many_warps_is_found_again(x, found):
    before, after = found.variance
    assert after < before / 100
    assert (found.aligned - found.means).abs().max() < 0.15  # of a shape that reaches from -0.8 to 1
    assert found.history[-1]["cost"] < found.history[0]["cost"] / 10


def test_warping_is_where_the_aligned_axis_reads(x, found):
    paths = found.warping()
    assert paths.shape == (12, 120, 1)
    assert (paths.diff(dim=1) > 0).all(), "time runs backwards"
    assert torch.equal(warp(x, found.family, found.theta, padding="border"), found.aligned)
    somewhere = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64)[:, None]
    there = found.warping(somewhere, inverse=True)
    torch.testing.assert_close(found.family(found.theta, there), somewhere.expand(12, -1, -1), atol=1e-9, rtol=0)


def test_warps_of_a_class_average_to_the_identity():
    x, y = torch.cat([bent(6), bent(6, kind=1, seed=1)]), torch.tensor([0] * 6 + [1] * 6)
    found = align(x, y=y, **QUICK)
    for k in range(2):
        torch.testing.assert_close(found.theta[y == k].mean(0), torch.zeros(15), atol=1e-5, rtol=0)
    assert found.theta.abs().max() > 0.05


def test_the_cost_falls_in_every_pass(found):
    passes = {}
    for record in found.history[:-1]:
        passes.setdefault(record["blur"], []).append(record["cost"])
    assert all(costs[-1] < costs[0] for costs in passes.values()), passes


# --- what it leaves alone


def test_equal_series_stay_as_they_are(x):
    same = x[:1].expand(5, -1, -1)
    found = align(same, **QUICK)
    assert found.theta.abs().max() < 1e-4
    torch.testing.assert_close(found.aligned, same, atol=1e-3, rtol=0)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("size", "level"), [(1000, -70), (1e-9, 0), (1, 1e7)])
def test_units_do_not_matter(x, size, level, normalise):
    x = x.double()
    one, other = (align(some, normalise=normalise, **QUICK) for some in (x, size * x + level))
    torch.testing.assert_close(one.theta, other.theta, atol=1e-5, rtol=0)
    assert one.variance == pytest.approx(other.variance, rel=1e-4)


def test_order_does_not_matter(x):
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(align(x[order], **QUICK).theta, align(x, **QUICK).theta[order], atol=1e-5, rtol=0)


def test_a_channel_twice_is_a_channel_once(x):
    torch.testing.assert_close(align(x.expand(-1, 2, -1), **QUICK).theta, align(x, **QUICK).theta, atol=1e-5, rtol=0)


def test_time_backwards_gives_the_warps_backwards(x):
    forth, back = align(x, **QUICK), align(x.flip(-1), **QUICK)
    # not exactly: between points series are straight lines, whose slope at a point is that of its right side
    torch.testing.assert_close(back.theta, -forth.theta.flip(-1), atol=0.03, rtol=0)
    assert forth.theta.abs().max() > 0.2


def test_labels_are_names_only():
    x = torch.cat([bent(4), bent(4, kind=1)])
    numbers, words = (align(x, y=y, **QUICK) for y in ([3] * 4 + [7] * 4, ["a"] * 4 + ["b"] * 4))
    assert torch.equal(numbers.theta, words.theta)
    assert (numbers.classes, words.classes) == ((3, 7), ("a", "b"))
    assert numbers.predict(x) == [3] * 4 + [7] * 4


def test_a_class_of_one_is_its_own_mean():
    x = torch.cat([bent(4), bent(1, kind=1)])
    found = align(x, y=[0, 0, 0, 0, 1], **QUICK)
    torch.testing.assert_close(found.means[1], x[4])
    assert found.theta[4].abs().max() == 0


def test_nothing_is_random(x):
    state = torch.get_rng_state()
    assert torch.equal(align(x, **QUICK).theta, align(x, **QUICK).theta)
    assert torch.equal(torch.get_rng_state(), state)


def test_squeezing_away_what_does_not_fit_gains_nothing():
    """The residual is measured on the series' own axis: it is the integral of (x - mean o T^-1)^2."""
    family = CPAB(8)
    theta = family.prior(0.3, 0.05).sample((3,)).double()
    length = 4000
    x = bent(3, length).double()
    target = bent(1, length, kind=1).double().expand(3, -1, -1)
    matcher = Matcher(family, torch.eye(family.dim, dtype=torch.float64), 0.0, 1.0, (0.0,))
    residual, price = matcher.terms(theta, x, target)
    back = warp(target, family, family.inverse(theta), padding="border")
    torch.testing.assert_close(residual, (x - back).square().mean((1, 2)), rtol=1e-3, atol=1e-5)
    assert (price == 0).all()


# --- what comes in


def test_series_of_different_lengths_are_read_on_their_own_axis(x):
    lengths = (60, 90, 120, 150) * 3
    unequal = [resample(one[None], (n,))[0] for one, n in zip(x, lengths, strict=True)]
    found = align(unequal, progress=False)
    assert found.lengths == lengths
    assert found.aligned.shape == (12, 1, 150)
    assert "from lengths of 60 to 150" in repr(found)
    before, after = found.variance
    assert after < before / 50
    assert align(unequal, length=100, **QUICK).aligned.shape == (12, 1, 100)
    torch.testing.assert_close(align(x, length=40, **QUICK).series, x.unflatten(2, (40, 3)).mean(-1))
    flat = align([one[0] for one in unequal], **QUICK)  # (time) is one channel
    assert torch.equal(flat.theta, align(unequal, **QUICK).theta)


def test_arrays_of_any_kind(x):
    found = align(x, **QUICK)
    assert torch.equal(align(x.numpy(), **QUICK).theta, found.theta)
    assert torch.equal(align(x[:, 0], **QUICK).theta, found.theta)
    assert torch.equal(align(x.flip(-1).numpy()[..., ::-1], **QUICK).theta, found.theta)
    assert torch.equal(align([one.astype(">f8") for one in x.numpy()], **QUICK).theta, found.theta)
    uneven = [one[..., : 20 + i] for i, one in enumerate(x.numpy())]
    several = np.empty(len(uneven), dtype=object)
    several[:] = uneven
    assert torch.equal(align(several, **QUICK).theta, align(uneven, **QUICK).theta)
    assert align((1000 * x).int().numpy(), **QUICK).aligned.dtype == torch.float32
    counts = ((1000 * x).long() + 1_700_000_000).numpy()  # whole numbers that float32 does not have
    assert torch.equal(align(counts, **QUICK).aligned, align(counts.astype(np.float64), **QUICK).aligned)
    table = pytest.importorskip("pandas").DataFrame(x[:, 0].numpy())
    assert torch.equal(align(table, **QUICK).theta, found.theta)
    assert torch.equal(align([row for _, row in table.iterrows()], **QUICK).theta, found.theta)
    assert align(x.float(), **QUICK).theta.dtype == torch.float32


def test_normalise_takes_out_level_and_size(x):
    scales = torch.linspace(0.5, 2.0, 12)[:, None, None]
    found = align(scales * x + scales, normalise=True, **QUICK)
    torch.testing.assert_close(found.theta, align(x, normalise=True, **QUICK).theta, atol=1e-5, rtol=0)
    dead = torch.cat([x, torch.full_like(x, 3.0)], dim=1)
    assert align(dead, normalise=True, **QUICK).aligned[:, 1].abs().max() == 0


def test_other_families(x):
    shifted = torch.stack([shape(torch.linspace(-1, 1, 100) - s) for s in torch.linspace(-0.1, 0.1, 6)])
    found = align(shifted, Translation(1), weight=0.001, progress=False)
    torch.testing.assert_close(found.theta[:, 0], torch.linspace(-0.1, 0.1, 6), atol=5e-3, rtol=0)
    both = align(shifted, Compose(Translation(1), CPAB(4)), **QUICK)
    assert both.theta.shape == (6, 4)
    before, after = both.variance
    assert after < before / 10


def test_images():
    grid = identity_grid((20, 20))
    places = torch.tensor([[-0.2, 0.0], [0.2, 0.1], [0.0, -0.2], [0.1, 0.2]])
    x = torch.exp(-((grid - places[:, None, None]) / 0.3).square().sum(-1))[:, None]
    found = align(x, CPAB((2, 2)), weight=0.01, rounds=2, evaluations=6, passes=(0.05, 0.0), progress=False)
    before, after = found.variance
    assert after < before / 5
    assert found.warping().shape == (4, 400, 2)
    assert found.transform(x[:2]).shape == (2, 1, 20, 20)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_device(x, device):
    found = align(x, y=[0, 1] * 6, device=device, **QUICK)
    assert found.theta.device.type == device
    torch.testing.assert_close(found.theta.cpu(), align(x, y=[0, 1] * 6, **QUICK).theta, atol=1e-2, rtol=0)
    assert len(found.predict(x)) == 12


# --- new series


def test_transform_brings_new_series_to_the_mean(found):
    new = bent(5, seed=9).double()
    distance = (new - found.means).square().mean()
    assert (found.transform(new) - found.means).square().mean() < distance / 20
    match = found.match(new)
    torch.testing.assert_close(warp(new, found.family, match.theta, padding="border"), match.aligned)
    longer = resample(new, (200,))
    assert found.transform(longer).shape == new.shape


def test_inference_mode_changes_nothing(x, found):
    with torch.inference_mode():
        new = x[:2] + 0.0
        assert torch.equal(found.transform(new), found.transform(x[:2]))
    assert torch.equal(found.transform(new), found.transform(x[:2]))
    with torch.inference_mode():
        aligned = align(x + 0.0, **QUICK)
    assert torch.equal(aligned.theta, align(x, **QUICK).theta)
    assert not aligned.theta.is_inference()


def test_match_goes_to_the_class_it_is_told_or_the_nearest():
    x, y = torch.cat([bent(5), bent(5, kind=1)]), [0] * 5 + [1] * 5
    found = align(x, y=y, **QUICK)
    new = torch.cat([bent(3, seed=5), bent(3, kind=1, seed=6)])
    nearest = found.match(new)
    assert nearest.labels == [0, 0, 0, 1, 1, 1]
    told = found.match(new, [0, 0, 0, 1, 1, 1])
    torch.testing.assert_close(told.theta, nearest.theta, atol=1e-3, rtol=0)
    wrong = found.match(new, [1, 1, 1, 0, 0, 0])
    assert wrong.labels == [1, 1, 1, 0, 0, 0]
    for rule in ("cost", "residual", "unaligned"):
        d = nearest.distances[rule]
        assert d.isfinite().all()
        assert found.predict(new, rule=rule) == d.argmin(1).tolist()
    assert told.distances["cost"][0, 1] == torch.inf
    assert (nearest.distances["residual"] <= nearest.distances["cost"]).all()


def test_aligned_means_classify_where_plain_means_cannot():
    """Cylinder, bell, funnel: the shapes start and end at random times."""
    train, test = cbf(45, seed=0), cbf(60, seed=1)
    plain = torch.stack([train.x[train.y == k].mean(0) for k in range(3)])
    euclidean = (torch.cdist(test.x.flatten(1), plain.flatten(1)).argmin(1) == test.y).float().mean()
    found = align(train.x, y=train.y, weight=0.3, length_scale=0.5, progress=False)
    aligned = (torch.tensor(found.predict(test.x)) == test.y).float().mean()
    assert aligned > 0.9
    assert aligned > euclidean + 0.1


def test_choose_takes_what_does_best_on_held_out_series():
    data = cbf(24, seed=3)
    options = {"rounds": 2, "evaluations": 8, "passes": (0.05, 0.0)}
    found = choose(data.x, data.y, weights=(0.3, 100.0), length_scales=(0.5,), folds=2, **options)
    assert len(found.table) == 6
    losses = [row["loss"] for row in found.table]
    assert losses == sorted(losses)
    assert found.best["weight"] == 0.3
    assert found.best["rule"] != "unaligned"
    assert isinstance(align(data.x, y=data.y, **found.best, **QUICK), Alignment)


def test_log_loss_is_least_at_its_temperature():
    distances, y = torch.sin(torch.arange(150.0, dtype=torch.float64)).view(50, 3), torch.arange(50) % 3
    least = log_loss(distances, y)
    assert least <= torch.nn.functional.cross_entropy(-distances / 0.1, y)
    assert least <= np.log(3) + 5e-3  # a high temperature knows nothing
    assert log_loss(1000 * distances, y) == pytest.approx(least, abs=1e-6)


# --- the parts


def test_minimise_solves_each_problem_as_if_alone():
    torch.manual_seed(0)
    scales = torch.logspace(-2, 3, 6, dtype=torch.float64)[:, None]  # from flat to steep
    goals = 3 * torch.randn(6, 4, dtype=torch.float64)
    stretch = torch.tensor([1.0, 3.0, 10.0, 30.0], dtype=torch.float64)

    def cost(z, rows=slice(None)):
        return (scales[rows] * ((z - goals[rows]) * stretch).square()).sum(1)

    z, f = minimise(cost, torch.zeros(6, 4, dtype=torch.float64), 120)
    torch.testing.assert_close(z, goals, atol=1e-4, rtol=0)
    torch.testing.assert_close(f, cost(z))
    alone, _ = minimise(lambda z: cost(z, slice(3, 4)), torch.zeros(1, 4, dtype=torch.float64), 120)
    torch.testing.assert_close(alone, z[3:4], atol=1e-8, rtol=0)


def test_minimise_never_goes_up_nor_into_the_undefined():
    def cost(z):  # a banana with a cliff: NaN beyond z = 2
        return torch.where(z[:, 0] < 2, 100 * (z[:, 1] - z[:, 0] ** 2) ** 2 + (1 - z[:, 0]) ** 2, torch.nan)

    start = torch.tensor([[-1.2, 1.0], [1.9, -1.0], [0.0, 0.0]])
    best = cost(start)
    for evaluations in (2, 5, 20, 100):
        z, f = minimise(cost, start, evaluations)
        assert (f <= best).all()
        best = f
    torch.testing.assert_close(z, torch.ones(3, 2), atol=0.05, rtol=0)


def test_blur_keeps_constants_and_means():
    flat = torch.full((2, 1, 30), 3.0)
    torch.testing.assert_close(blur(flat, 0.1), flat)
    spike = torch.zeros(1, 1, 41, 41)
    spike[..., 20, 20] = 1
    out = blur(spike, 0.05)
    assert out.sum() == pytest.approx(1, abs=1e-5)
    place = torch.arange(41) - 20.0
    assert (out.sum((0, 1, 2)) * place**2).sum() == pytest.approx((0.05 * 41) ** 2, rel=0.05)
    torch.testing.assert_close(out, out.transpose(-1, -2))
    assert torch.equal(blur(spike, 0.0), spike)


def test_resampling_keeps_the_edges():
    x = torch.linspace(-1, 1, 50, dtype=torch.float64).expand(1, 1, 50)  # linear in time
    centres = identity_grid((25,), dtype=torch.float64)[:, 0]
    torch.testing.assert_close(resample(x, (25,))[0, 0], centres * 50 / 49)
    assert resample(x, (50,)) is x


# --- what is refused


def _with_nan():
    x = bent(4)
    x[2, 0, 5] = torch.nan
    return x


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (lambda: (_with_nan(),), {}, "1 of 4 series have NaN or infinite values, the first at index 2"),
        (lambda: (bent(1),), {}, "at least two"),
        (lambda: (torch.zeros(0, 1, 50),), {}, "no series"),
        (lambda: ([],), {}, "no series"),
        (lambda: (torch.full((5, 1, 50), 3.0),), {}, "nothing to align"),
        (lambda: ([torch.full((1, n), 0.1) for n in (50, 70, 81)],), {}, "nothing to align"),
        (lambda: ([torch.full((1, n), 0.1) for n in (50, 70, 81)],), {"normalise": True}, "series 0 .* is constant"),
        (lambda: (torch.cat([bent(3), torch.ones(1, 1, 120)]),), {"normalise": True}, "series 3 .* is constant"),
        (lambda: ([torch.rand(1, 30), torch.rand(2, 30)],), {}, "same number of channels"),
        (lambda: ([torch.rand(1, 30, 30), torch.rand(1, 20, 20)],), {}, "resize the images"),
        (lambda: (bent(4), CPAB((2, 2))), {}, "acts on 2-D arrays; these are 1-D"),
        (lambda: (bent(4),), {"y": [0, 1]}, "2 labels for 4 series"),
        (lambda: (bent(4),), {"rule": "best"}, "rule is 'best'"),
        (lambda: (bent(4),), {"passes": ()}, "at least one blur"),
        (lambda: (bent(4),), {"weight": -1.0}, "weight is -1.0"),
        (lambda: (bent(4),), {"length_scale": 0.0}, "length_scale is 0.0"),
        (lambda: (bent(4),), {"rounds": 0}, "rounds is 0"),
    ],
)
def test_bad_input_is_refused_in_words(arguments, options, says):
    with pytest.raises(ValueError, match=says):
        align(*arguments(), progress=False, **options)


def test_bad_new_series_are_refused_in_words(found):
    with pytest.raises(ValueError, match=r"labels \[5\] are not among the classes"):
        found.match(bent(2), [0, 5])
    with pytest.raises(ValueError, match=r"arrays of shape \(2, 120\)"):
        found.match(torch.rand(3, 2, 120))
    with pytest.raises(ValueError, match="rule is"):
        found.match(bent(2), rule="nearest")
    with pytest.raises(ValueError, match="two classes of two each"):
        choose(bent(4), [0, 0, 0, 1])


def test_reading_copies_nothing_it_need_not(x):
    same, lengths = read(x, None, False, None)
    assert same.data_ptr() == x.data_ptr()
    assert lengths == (120,) * 12
