import io
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from subject import assert_same, differ, make_data, make_model, weights
from torch import nn

from pstn import CNN, STN, Similarity
from pstn.data import Data
from pstn.inference import Augment, predict
from pstn.objectives import elbo, log_likelihood
from pstn.stn import param_groups
from pstn.train import Member, fit, fit_fleet, load_model, seeded
from pstn.train.loop import make_optimizer


def test_two_runs_with_one_seed_are_one(data, validation, config):
    torch.manual_seed(1)
    first = fit(make_model(), data, validation, config)
    torch.manual_seed(2)  # what was drawn before does not matter
    torch.rand(5)
    second = fit(make_model(), data, validation, config)
    assert_same(weights(first.model), weights(second.model))
    for a, b in zip(first.history, second.history, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    third = fit(make_model(), data, validation, replace(config, seed=1))
    assert differ(weights(first.model), weights(third.model))


def test_the_callers_stream_is_left_alone(model, data, validation, config):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    fit(model, data, validation, config)
    assert torch.equal(torch.rand(4), expected)


def test_it_is_the_plain_loop(data, config):
    """The same weights as twelve lines of torch, drawn by the same streams."""
    trained = fit(make_model(), data, config=config).model
    plain = make_model()
    optimizer = torch.optim.Adam(param_groups(plain, config.lr, 0.1), weight_decay=config.weight_decay, fused=True)
    order = torch.Generator().manual_seed(config.seed)
    with seeded(config.seed):
        for _ in range(config.epochs):
            for index in torch.randperm(len(data), generator=order).split(config.batch_size):
                optimizer.zero_grad()
                elbo(plain(data.x[index]), data.y[index], kl_weight=config.kl_weight).backward()
                optimizer.step()
    assert_same(weights(trained), weights(plain))


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_epoch_sees_every_example_once_in_a_new_order(data, config, drop_last):
    marked = Data(torch.arange(22.0).view(22, 1, 1, 1).expand(22, 1, 8, 8).contiguous(), data.y, data.classes)
    seen: list[list[int]] = []

    def watch(x):
        seen.append(x[:, 0, 0, 0].int().tolist())
        return x

    run = fit(make_model(), marked, config=replace(config, drop_last=drop_last), augment=watch)
    sizes = [5, 5, 5, 5] if drop_last else [5, 5, 5, 5, 2]
    assert [len(batch) for batch in seen] == sizes * 3
    assert run.steps == len(sizes) * 3
    epochs = [[*chain(*seen[i : i + len(sizes)])] for i in range(0, len(seen), len(sizes))]
    for epoch in epochs:
        assert len(set(epoch)) == sum(sizes)
    assert epochs[0] != epochs[1]
    order = torch.Generator().manual_seed(config.seed)
    assert epochs[0] == torch.randperm(22, generator=order)[: sum(sizes)].tolist()


def test_a_batch_larger_than_the_data_is_all_of_it(model, data, config):
    run = fit(model, data, config=replace(config, batch_size=1000, epochs=2))
    assert run.steps == 2


def test_steps_stop_in_the_middle_of_an_epoch(model, data, config):
    run = fit(model, data, config=replace(config, steps=7))
    assert run.steps == 7
    assert [record["step"] for record in run.history] == [5, 7]


def test_validating_changes_nothing(data, validation, config):
    with_it = fit(make_model(), data, validation, replace(config, samples_validation=7))
    without = fit(make_model(), data, config=config)
    assert_same(weights(with_it.model), weights(without.model))
    assert "validation_nll" not in without.history[-1]


@pytest.mark.parametrize(("every", "validated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (0, [5])])
def test_validation_comes_when_asked_and_at_the_end(model, data, validation, config, every, validated):
    run = fit(model, data, validation, replace(config, epochs=5, validate_every=every))
    assert [r["epoch"] for r in run.history if "validation_nll" in r] == validated


def test_the_record_says_what_happened(data, validation, config):
    """Nothing moves at lr = 1e-30, so every figure can be computed beside it."""
    still = replace(config, epochs=1, lr=1e-30, weight_decay=0.0, samples=3, kl_per="dimension")
    cnn = STN(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    record = fit(cnn, data, validation, still).history[0]
    with torch.no_grad():
        expected = -log_likelihood(cnn(data.x).logits, data.y).mean().item()
    assert record["loss"] == pytest.approx(expected, rel=1e-5)
    assert record["nll"] == pytest.approx(expected, rel=1e-5)
    assert record["kl"] == 0
    assert record["lr"] == 1e-30
    assert record["seconds"] > 0
    p = predict(cnn, validation.x, samples=2)
    assert record["validation_accuracy"] == pytest.approx((p.labels == validation.y).double().mean().item())
    picked = p.log_probs.gather(1, validation.y[:, None])
    assert record["validation_nll"] == pytest.approx(-picked.mean().item(), rel=1e-5)


@pytest.mark.parametrize(("kl_per", "size"), [("dimension", 4), ("input", 1)])
def test_the_loss_is_the_sum_of_its_terms(data, config, kl_per, size):
    config = replace(config, kl_per=kl_per, samples=3, kl_weight=1e-3)
    seen = []

    class Watched(STN):
        def forward(self, x, *args, **kwargs):
            out = super().forward(x, *args, **kwargs)
            seen.append(out)
            return out

    model = make_model()
    model.__class__ = Watched
    run = fit(model, data, config=replace(config, epochs=1, batch_size=22, lr=1e-30))
    record = run.history[0]
    assert record["loss"] == pytest.approx(record["nll"] + 1e-3 / size * record["kl"], rel=1e-6)
    order = torch.randperm(22, generator=torch.Generator().manual_seed(config.seed))
    assert record["kl"] == pytest.approx(seen[-1].kl.mean().item(), rel=1e-5)
    assert record["kl"] > 0
    assert record["nll"] == pytest.approx(-log_likelihood(seen[-1].logits, data.y[order]).mean().item(), rel=1e-5)


def test_the_importance_weighted_bound_trains(model, data, config):
    record = fit(model, data, config=replace(config, bound="iw", samples=3)).history[-1]
    assert all(math.isfinite(record[name]) for name in ("loss", "nll", "kl"))


def test_it_learns(data, validation, config):
    model = STN(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
    run = fit(model, data, validation, replace(config, epochs=20))
    assert run.history[-1]["loss"] < 0.5 * run.history[0]["loss"]
    assert run.history[-1]["validation_accuracy"] > 0.8


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_optimizers_and_precisions(data, validation, config, optimizer, precision):
    config = replace(config, optimizer=optimizer, precision=precision, clip=1.0, epochs=2)
    run = fit(make_model(), data, validation, config)
    assert math.isfinite(run.history[-1]["validation_nll"])
    wanted = torch.float64 if precision == "64-true" else torch.float32
    assert all(p.dtype == wanted for p in run.model.parameters())
    assert differ(weights(run.model.float()), weights(make_model()))


@pytest.mark.parametrize(("of_model", "of_data"), [("float", "double"), ("double", "float"), ("double", "double")])
def test_whole_runs_in_64_bits_take_what_is_given_in_32_or_64(of_model, of_data, model, data, validation, config):
    data, validation = (replace(d, x=getattr(d.x, of_data)()) for d in (data, validation))
    run = fit(getattr(model, of_model)(), data, validation, replace(config, epochs=1, precision="64-true"))
    assert {p.dtype for p in run.model.parameters()} == {torch.float64}


def test_optimizers_are_torchs(config):
    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)):
        nesterov = name == "sgd"
        made = make_optimizer(
            param_groups(make_model(), 0.2, 0.5), replace(config, optimizer=name, momentum=0.7, nesterov=nesterov)
        )
        assert type(made) is kind
        assert sorted(group["lr"] for group in made.param_groups) == [0.1, 0.2]
        assert all(group["weight_decay"] == config.weight_decay for group in made.param_groups)
        if name == "sgd":
            assert made.param_groups[0]["momentum"] == 0.7
            assert made.param_groups[0]["nesterov"] is True


def test_clipping_bounds_the_step(data, config):
    """A step of plain SGD is lr times the gradient, so its length shows the gradient's norm."""
    config = replace(config, optimizer="sgd", momentum=0.0, lr=1.0, localizer_lr=1.0, weight_decay=0.0, steps=1)

    def moved(clip):
        model = make_model()
        before = [p.detach().clone() for p in model.parameters()]
        fit(model, data, config=replace(config, clip=clip))
        return torch.cat([(p.detach() - b).flatten() for p, b in zip(model.parameters(), before, strict=True)])

    free = moved(None)
    assert moved(1e-3).norm().item() == pytest.approx(1e-3, rel=1e-4)
    torch.testing.assert_close(moved(1e-3), free * 1e-3 / free.norm(), rtol=1e-4, atol=1e-6)
    assert torch.equal(moved(1e6), free)


def test_the_schedule_and_the_localizers_rate_reach_the_optimizer(data, config, monkeypatch):
    rates = []
    original = torch.optim.Adam.step

    def step(self, *args, **kwargs):
        rates.append([group["lr"] for group in self.param_groups])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    run = fit(make_model(), data, config=replace(config, schedule="step", step_size=2, gamma=0.5, localizer_lr=0.1))
    assert [max(pair) for pair in rates] == pytest.approx([1e-2] * 10 + [5e-3] * 5)
    assert [min(pair) for pair in rates] == pytest.approx([1e-3] * 10 + [5e-4] * 5)
    assert [record["lr"] for record in run.history] == pytest.approx([1e-2, 1e-2, 5e-3])


def test_the_kl_weight_warms_up(data, config):
    """With the whole KL in the first epoch the weights differ; with a warmup of no epochs they do not."""
    plain = weights(fit(make_model(), data, config=config).model)
    assert_same(plain, weights(fit(make_model(), data, config=replace(config, kl_warmup=0.0)).model))
    assert differ(plain, weights(fit(make_model(), data, config=replace(config, kl_warmup=2.0)).model))
    run = fit(make_model(), data, config=replace(config, kl_warmup=100.0, epochs=1, batch_size=22))
    assert run.history[0]["loss"] == run.history[0]["nll"]  # the first step's weight is 0


def test_best_is_the_epoch_with_the_least_nll(data, validation, config, tmp_path):
    kept = []
    model = make_model()
    config = replace(config, epochs=6, kl_weight=1e-5, keep="best")
    validation = replace(validation, y=(validation.y + 1) % 3)  # the more is learned, the worse
    run = fit(model, data, validation, config, directory=tmp_path, on_epoch=lambda record: kept.append(weights(model)))
    values = [record["validation_nll"] for record in run.history]
    best = values.index(min(values))
    assert best < 5, "the last should not be the best, or the test shows nothing"
    assert run.best == run.history[best]
    assert_same(weights(model), kept[best])
    other = make_model(5)
    meta = load_model(other, tmp_path / "model.safetensors")
    assert_same(weights(other), kept[best])
    assert meta["record"]["epoch"] == best + 1
    load_model(other, tmp_path / "checkpoint.safetensors")
    assert_same(weights(other), kept[-1])  # the checkpoint is where the run would go on


def test_a_loss_of_ones_own(model, data, validation, config):
    config = replace(config, epochs=10)
    run = fit(model, data, validation, config, loss=lambda out, y: out.logits.square().mean())
    assert set(run.history[0]) == {"epoch", "step", "loss", "lr", "seconds", "validation_loss"}
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert run.best is min(run.history, key=lambda record: record["validation_loss"])


def test_augmentation_draws_from_the_runs_stream(data, config):
    def run():
        return weights(fit(make_model(), data, config=config, augment=Augment(Similarity(), 0.2).eval()).model)

    torch.manual_seed(0)
    first = run()
    torch.manual_seed(1)
    assert_same(first, run())
    assert differ(first, weights(fit(make_model(), data, config=config).model))


def test_the_mode_is_left_as_it_was(data, config):
    assert not fit(make_model().eval(), data, config=config).model.training
    assert fit(make_model().train(), data, config=config).model.training


def test_a_frozen_body_stays(data, config):
    body = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))
    model = STN(body, nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), Similarity(), frozen=True)
    before = weights(model)
    fit(model, data, config=config)
    after = weights(model)
    assert_same({k: v for k, v in before.items() if "body" in k}, {k: v for k, v in after.items() if "body" in k})
    assert differ(before, after)


def test_the_log_has_a_header_and_a_line_an_epoch(data, validation, config, tmp_path):
    run = fit(make_model(), data, validation, config, directory=tmp_path / "run")
    header, *records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert records == run.history
    assert header["config"]["lr"] == config.lr
    assert header["parameters"] == sum(p.numel() for p in run.model.parameters())
    assert header["versions"]["torch"] == torch.__version__
    assert header["device"].startswith(run.model.body[0].weight.device.type)
    assert "commit" in header
    assert header["train"]["name"] == "dots"
    assert header["validation"]["shape"] == [15, 1, 8, 8]
    assert {path.name for path in run.directory.iterdir()} == {
        "checkpoint.safetensors",
        "log.jsonl",
        "model.safetensors",
    }


def test_it_runs_in_a_thread(data, config):
    """Signals belong to the main thread; elsewhere a run does without them."""
    with ThreadPoolExecutor(1) as pool:
        model = pool.submit(fit, make_model(), data, config=config).result().model
    assert_same(weights(model), weights(fit(make_model(), data, config=config).model))


def test_without_a_directory_nothing_is_written(data, config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fit(make_model(), data, config=config).directory is None
    assert list(tmp_path.iterdir()) == []


def test_progress_is_silent_without_a_terminal(data, config, capfd):
    fit(make_model(), data, config=config, progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_progress_joins_a_display(data, validation, config):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with Progress("{task.description} {task.fields[status]}", console=console, auto_refresh=False) as display:
        fit(
            make_model(),
            data,
            validation,
            config,
            progress=display,
            on_epoch=lambda record: display.refresh(),
        )
        assert display.tasks == []
    assert "dots epoch 3/3" in text.getvalue()
    assert "loss" in text.getvalue()
    assert "validation" in text.getvalue()


# What cannot work says so.


def test_divergence_names_the_step_and_keeps_the_last_good_state(data, config, tmp_path):
    batches = 0

    def spoil(x):
        nonlocal batches
        batches += 1
        return x * math.nan if batches == 8 else x

    config = replace(config, checkpoint_every=0.0)
    with pytest.raises(FloatingPointError, match=r"loss became nan in epoch 2 at step 8 of 15.*lr.*clip") as caught:
        fit(make_model(), data, config=config, directory=tmp_path, augment=spoil)
    assert str(tmp_path / "checkpoint.safetensors") in str(caught.value)
    good = make_model(5)
    assert load_model(good, tmp_path / "checkpoint.safetensors")["state"]["step"] == 5
    assert all(value.isfinite().all() for value in weights(good).values())
    assert_same(weights(good), weights(fit(make_model(), data, config=replace(config, epochs=1)).model))


def test_nan_weights_are_not_saved_over_good_ones(data, config, tmp_path):
    """The loss is finite, its gradient is not: the weights are ruined before any loss shows it."""
    config = replace(config, checkpoint_every=1e-9, batch_size=22, epochs=2)
    calls = 0

    def loss(out, y):
        nonlocal calls
        calls += 1
        bad = (out.logits.sum() * 0).sqrt() if calls == 2 else 0.0  # 0, with an infinite slope
        return out.logits.square().mean() + bad

    with pytest.raises(FloatingPointError, match=r"weights .* became NaN or infinite in epoch 2 at step 2 of 2"):
        fit(make_model(), data, config=config, directory=tmp_path, loss=loss)
    good = make_model(5)
    load_model(good, tmp_path / "checkpoint.safetensors")
    assert all(value.isfinite().all() for value in weights(good).values())


def test_nan_weights_are_found_at_the_end(data, config):
    """The last step ruins the weights, and no loss comes after it to show it."""
    config = replace(config, batch_size=22, epochs=1)
    with pytest.raises(FloatingPointError, match=r"weights .* became NaN or infinite in epoch 1 at step 1 of 1"):
        fit(make_model(), data, config=config, loss=lambda out, y: (out.logits.sum() * 0).sqrt())


def test_labels_beyond_the_logits_are_named(config):
    data = Data(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 5]), tuple("abcdef"), "letters")
    with pytest.raises(ValueError, match=r"'letters' has label 5, but the model has 3 logits"):
        fit(make_model(), data, config=config)
    with pytest.raises(ValueError, match=r"'letters' has label 5"):
        fit(make_model(), make_data(), data, config)


def test_one_class_only_is_named(config):
    data = Data(torch.randn(4, 1, 8, 8), torch.ones(4, dtype=torch.long), ("a", "b", "c"))
    with pytest.raises(ValueError, match="one class only"):
        fit(make_model(), data, config=config)


def test_a_batch_that_is_never_full_is_named(data, config):
    with pytest.raises(ValueError, match=r"batch_size is 100 and the 22 examples"):
        fit(make_model(), data, config=replace(config, batch_size=100, drop_last=True))


def test_best_without_validation_is_named(data, config):
    with pytest.raises(ValueError, match="keep='best' needs validation data"):
        fit(make_model(), data, config=replace(config, keep="best"))


def test_another_shape_in_validation_is_named(data, config):
    other = Data(torch.randn(4, 1, 8, 9), torch.tensor([0, 1, 2, 0]), data.classes)
    with pytest.raises(ValueError, match=r"validation examples have shape \(1, 8, 9\), training ones \(1, 8, 8\)"):
        fit(make_model(), data, other, config)


def test_an_augmentation_may_make_the_examples_fit(data, config):
    """Training examples of another size than validation's, which the augmentation brings to that size."""
    small = Data(data.x[..., 1:7, 1:7], data.y, data.classes)

    class Enlarge(nn.Module):
        def forward(self, x):
            return nn.functional.pad(x + 0 * torch.rand_like(x), (1, 1, 1, 1))

    run = fit(make_model(), small, data, config, augment=Enlarge())
    members = [Member(make_model(), small, data, config, augment=Enlarge())]
    assert run.steps == fit_fleet(members)[0].steps == 15
    with pytest.raises(ValueError, match=r"validation examples have shape \(1, 8, 8\), training ones \(1, 6, 6\)"):
        fit(make_model(), small, data, config)
    with pytest.raises(ValueError, match=r"validation examples have shape \(1, 6, 6\), training ones \(1, 8, 8\)"):
        fit(make_model(), small, small, config, augment=Enlarge())


def test_an_augmentation_that_is_a_function_may_crop(data, validation, config):
    def cropped(x):
        return x[..., 1:-1, 1:-1]

    model = STN(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)))
    run = fit(model, data, replace(validation, x=cropped(validation.x)), config, augment=cropped)
    assert run.steps == 15


def test_nothing_to_train_is_named(data, config):
    with pytest.raises(ValueError, match="nothing to train"):
        fit(make_model().requires_grad_(False), data, config=config)


def test_a_plain_network_trains(data, config):
    model = STN(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), placement=CNN)
    assert fit(model, data, config=config).history[-1]["kl"] == 0


def test_a_divergence_counted_once_for_the_data_set(data, config, monkeypatch):
    """Each of n inputs has a share of one over √n, if the network knows everything; of a lost one nothing is asked."""
    monkeypatch.setattr("pstn.train.step.known", lambda *given: torch.ones(()))
    whole = replace(config, kl_weight=len(data) ** 0.5 * config.kl_weight, kl_per="dataset")
    assert_same(
        weights(fit(make_model(), data, config=config).model), weights(fit(make_model(), data, config=whole).model)
    )
    monkeypatch.setattr("pstn.train.step.known", lambda *given: torch.zeros(()))
    nothing, none = (fit(make_model(), data, config=c).model for c in (whole, replace(config, kl_weight=0.0)))
    assert_same(weights(nothing), weights(none))
