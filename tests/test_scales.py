import pytest
import torch

from pstn.nets.scales import Scales, Slopes, Summary, scales_classifier


def test_slopes_are_differences_and_forget_the_level():
    x = torch.randn(2, 3, 20)
    value, slope = Slopes()(x).chunk(2, dim=1)
    torch.testing.assert_close(value, x)
    torch.testing.assert_close(slope[..., 1:], 3 * (x[..., 1:] - x[..., :-1]))
    assert (slope[..., 0] == 0).all()
    torch.testing.assert_close(Slopes()(x + 5)[:, 3:], slope)


def test_each_scale_sees_as_far_as_its_kernel():
    layer = Scales(1, 2, (3, 9))
    x = torch.zeros(1, 1, 41)
    still = layer(x)
    x[..., 20] = 1
    moved = (layer(x) != still).any(dim=0)
    for channels, kernel in ((moved[:2], 3), (moved[2:], 9)):
        places = channels.any(dim=0).nonzero().flatten()
        assert (int(places.min()), int(places.max())) == (20 - kernel // 2, 20 + kernel // 2)


def test_a_summary_does_not_know_the_order_of_time():
    x = torch.randn(2, 5, 30)
    torch.testing.assert_close(Summary()(x), Summary()(x[..., torch.randperm(30)]))
    assert Summary()(x).shape == (2, 10)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 31, 32, 300])
def test_series_of_any_length_and_gradients_everywhere(length):
    model = scales_classifier((2, length), 3)
    logits = model(torch.randn(4, 2, length))
    assert logits.shape == (4, 3)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
