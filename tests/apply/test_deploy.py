"""Models leave: fixed draws as programs and ONNX graphs, folders on a hub."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from pstn import C, Gaussian, Learned, Point, StudentT, nets, predict
from pstn.apply import ModelError, Trained, from_pretrained, load, push_to_hub
from pstn.apply.measure import measure
from pstn.data import Data, Normalise
from pstn.export import Fixed, SampledPath, export
from pstn.families import CPAB, Affine, Compose, Similarity
from pstn.recipe import network
from pstn.stn import STN

SHAPE = (1, 20, 20)


def wandering(family, posterior, placement=None, shape=SHAPE):
    body = nets.classifier(shape, 4, channels=(4, 5), kernel=3)
    model = STN(body, nets.localizer(shape, channels=(4,), kernel=3), family, posterior, placement or C(0), fill=-0.4)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model.eval()


CASES = {
    "student": lambda: (wandering(Similarity(), StudentT(alpha=1.5, spread=0.3)), SHAPE),
    "series": lambda: (wandering(Compose(Affine(1), CPAB(4)), Learned(spread=0.3), shape=(1, 30)), (1, 30)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fixed_draws_in_another_runtime(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, shape = case()
    x = torch.rand(5, *shape)
    with torch.no_grad():
        expected = SampledPath(model, 8)(x)
        centre = model(x, samples=0).logits[0].softmax(-1)
    assert (expected - centre).abs().max() > 1e-3, "the draws matter"
    file = export(model, "onnx", tmp_path / "m.onnx", x[:2], samples=8)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["probs"], {"x": x.numpy()})[0], expected.numpy(), atol=1e-5)
    file = export(model, "torch.export", tmp_path / "m.pt2", x[:2], samples=8)
    assert torch.allclose(torch.export.load(file).module()(x), expected, atol=1e-6)


def test_fixed_draws_are_draws_of_the_posterior():
    model = wandering(Similarity(), Gaussian(spread=0.3))
    x = torch.rand(1, *SHAPE)
    theta = predict(Fixed(model, 1024), x).theta[:, 0]
    q = model(x, samples=0).posterior
    assert torch.allclose(theta.mean(0), q.mean[0], atol=0.02)
    assert torch.allclose(theta.std(0), q.stddev[0], rtol=0.05)
    assert torch.equal(predict(Fixed(model, 4), x).theta, predict(Fixed(model, 4), x).theta)


def test_two_looks_have_draws_of_their_own():
    model = wandering(Similarity(), Gaussian(spread=0.2), C(0, iterations=2))
    x = torch.rand(2, *SHAPE)
    first, second = Fixed(model, 8)(x).stages
    assert first.theta.shape == second.theta.shape == (8, 2, 4)
    away = [stage.theta - stage.posterior.mean for stage in (first, second)]
    assert (away[0] / away[0].std() - away[1] / away[1].std()).abs().mean() > 0.3, "not the same points again"
    assert torch.equal(Fixed(model, 8)(x).logits, Fixed(model, 8)(x).logits)


def test_fixed_draws_leave_the_model_alone():
    model = wandering(Similarity(), Gaussian(spread=0.3))
    Fixed(model, 4)(torch.rand(2, *SHAPE))
    x = torch.rand(2, *SHAPE)
    assert not torch.equal(model(x, samples=2).theta, model(x, samples=2).theta), "it draws as before"
    with pytest.raises(ValueError, match="at least one"):
        Fixed(model, 0)


def test_a_point_has_one_draw():
    model = wandering(Similarity(), Point())
    x = torch.rand(3, *SHAPE)
    assert Fixed(model, 8)(x).logits.shape == (1, 3, 4)


def test_formats_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"expected one of 'onnx', 'torch.export'"):
        export(wandering(Similarity(), Point()), "tflite", tmp_path / "m", torch.rand(2, *SHAPE))


@pytest.fixture
def made():
    model = network(SHAPE, 2, fill=-0.5)
    return Trained(model.eval(), ("cat", "dog"), SHAPE, Normalise(0.2, 0.4), {"kind": "images", "colour": False})


def test_a_folder_holds_the_model(made, tmp_path):
    x = torch.rand(3, *SHAPE)
    again = load(made.save(tmp_path / "m"))
    assert torch.equal(again.predict(x).probs, made.predict(x).probs)
    assert torch.allclose(again.predict(x.double()).probs, made.predict(x).probs), "numpy's precision is no obstacle"
    assert again.classes == made.classes
    assert again.normalise == made.normalise


class Hub:
    """A hub that is a folder."""

    def __init__(self, root):
        self.root = root

    def HfApi(self, **options):
        return self

    def create_repo(self, name, private, exist_ok):
        (self.root / name).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"https://hub/{repo_id}"

    def snapshot_download(self, name, allow_patterns, **options):
        return str(self.root / name)


def test_there_and_back_through_a_hub(made, tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.apply.hub._hub", lambda: Hub(tmp_path))
    assert push_to_hub(made, "me/pets") == "https://hub/me/pets"
    assert {file.name for file in (tmp_path / "me" / "pets").iterdir()} == {
        "README.md",
        "model.json",
        "model.safetensors",
    }
    x = torch.rand(3, *SHAPE)
    assert torch.equal(from_pretrained("me/pets").predict(x).probs, made.predict(x).probs)
    assert torch.equal(from_pretrained(tmp_path / "me" / "pets").predict(x).probs, made.predict(x).probs)


def test_the_card_on_a_hub_says_how_calibrated_the_model_is(made, tmp_path, monkeypatch):
    monkeypatch.setattr("pstn.apply.hub._hub", lambda: Hub(tmp_path))
    data = Data(torch.rand(40, *SHAPE), torch.arange(40) % 2, made.classes)
    measured = measure(made, data)
    push_to_hub(replace(made, measured=measured).save(tmp_path / "m"), "me/pets")
    card = (tmp_path / "me" / "pets" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pstn\n")
    assert f"| ECE | {measured['ece']:.3f} |" in card
    assert f"| accuracy | {measured['accuracy']:.3f} |" in card
    assert f"(mean confidence {measured['confidence']:.3f})" in card
    assert "surer than it is right" in card or "right than it is sure" in card or "as sure as it is right" in card
    assert 'from_pretrained("me/pets")' in card


def test_the_functions_of_the_hub_exist():
    """What the stand-in above stands in for."""
    import inspect

    import huggingface_hub

    upload = inspect.signature(huggingface_hub.HfApi.upload_folder).parameters
    assert {"repo_id", "folder_path", "commit_message"} <= set(upload)
    assert {"private", "exist_ok"} <= set(inspect.signature(huggingface_hub.HfApi.create_repo).parameters)
    assert "allow_patterns" in inspect.signature(huggingface_hub.snapshot_download).parameters


def test_a_name_that_is_nothing(tmp_path):
    with pytest.raises(ModelError, match="neither a folder nor a name"):
        from_pretrained("pets")
    with pytest.raises(ModelError, match="no folder here, and cannot be had from the hub"):
        from_pretrained("me/none", local_files_only=True, cache_dir=tmp_path)


def test_a_file_from_elsewhere_builds_networks_only(made, tmp_path):
    about = json.loads((made.save(tmp_path) / "model.json").read_text())
    about["network"]["body"] = {"is": "eval", "source": "1/0"}
    (tmp_path / "model.json").write_text(json.dumps(about))
    with pytest.raises(ModelError, match="no part called 'eval'"):
        from_pretrained(tmp_path)
