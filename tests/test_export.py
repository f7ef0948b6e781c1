"""The mean path leaves the library: torch.export and ONNX, any batch size, the same numbers."""

import numpy as np
import pytest
import torch

from pstn import CNN, DL, SL, STN, C, Gaussian, Point, StudentT, nets, turns
from pstn.export import MeanPath, to_onnx, to_program
from pstn.families import CPAB, TPS, Affine, Compose, Crop, Projective, Rotation, Similarity
from pstn.families.cpab.flow import plain

SHAPE = (1, 20, 20)


def trained(family, posterior=None, placement=None, size=SHAPE):
    torch.manual_seed(0)
    placement = C(0) if placement is None else placement
    shape = size if 1 not in placement.depths else (4, 9, 9)
    localizer = nets.localizer(shape, channels=(4,), kernel=3) if placement.depths else None
    body = nets.classifier(size, 10, channels=(4, 5), kernel=3)
    model = STN(body, localizer, family if placement.depths else None, posterior or StudentT(), placement, fill=-0.4)
    for transformer in model.transformers:
        torch.nn.init.normal_(transformer.head.loc[-1].weight, std=0.02)
    return model.eval()


DIFFEOMORPHIC = {
    "cpab": (Compose(Similarity(), CPAB((2, 2))), StudentT(), C(0)),
    "cpab of series": (CPAB(5), Gaussian(), C(0), (1, 30)),
}
CASES = {
    "similarity": (Similarity(), StudentT(), C(0)),
    "several matrices": (Compose(Rotation(), Crop(), Affine()), Gaussian(), C(0)),
    "projective": (Projective(), Point(), C(0)),
    "tps": (TPS(3), StudentT(), C(0)),
    "SL1": (Similarity(), StudentT(), SL(1)),
    "cnn": (None, Point(), CNN),
    **DIFFEOMORPHIC,
}
PROGRAMS = {
    "DL1": (Similarity(), StudentT(), DL(1)),
    "two iterations": (Similarity(), Gaussian(), C(0, iterations=2)),
    "four starts": (Rotation(), Point(), C(0, starts=turns(4))),
    **DIFFEOMORPHIC,
}


def example(case):
    """A network, inputs of another number than it was exported with, and what it says of them."""
    model = trained(*case)
    x = torch.rand(5, *(case[3] if len(case) > 3 else SHAPE))
    with torch.no_grad():
        return model, x, MeanPath(model)(x)


@pytest.mark.parametrize("case", PROGRAMS.values(), ids=PROGRAMS)
def test_an_exported_program_agrees_with_the_model(case):
    model, x, expected = example(case)
    assert torch.allclose(to_program(model, x[:2]).module()(x), expected, atol=1e-6)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_onnx_agrees_with_the_model(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x, expected = example(case)
    path = to_onnx(model, x[:2], tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (probs,) = session.run(["probs"], {"x": x.numpy()})
    np.testing.assert_allclose(probs, expected.numpy(), atol=1e-5)


class Move(torch.nn.Module):
    def __init__(self, family):
        super().__init__()
        self.family = family

    def forward(self, theta, points):
        return self.family(theta, points)


@pytest.mark.parametrize(("cells", "zero"), [((9,), False), ((3, 2), True), ((2, 1, 1), False)])
def test_cpab_is_exact_in_another_runtime(cells, zero, tmp_path):
    """Nearly still and fast fields, points inside and outside, at nodes and borders; any batch size."""
    onnxruntime = pytest.importorskip("onnxruntime")
    family = CPAB(cells, zero)
    spread = torch.tensor([0.0, 1e-9, 1e-3, 0.3, 1.0, torch.nan], dtype=torch.float64)[:, None]
    theta = spread * torch.randn(6, family.dim, dtype=torch.float64)
    points = torch.cat([2.4 * torch.rand(40, family.ndim, dtype=torch.float64) - 1.2, family.mesh.nodes])
    with plain():
        program = torch.export.export(
            Move(family), (theta[:2], points), dynamic_shapes=({0: torch.export.Dim("batch")}, None)
        )
    assert not any("cpab" in str(node.target) for node in program.graph.nodes)
    torch.onnx.export(program, opset_version=20, dynamo=True, verbose=False, optimize=False).save(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"theta": theta.numpy(), "points": points.numpy()})
    np.testing.assert_allclose(found, family(theta, points).numpy(), rtol=0, atol=1e-13)


def test_what_onnx_cannot_hold_is_said_in_words(monkeypatch, tmp_path):
    pytest.importorskip("onnxscript")

    def fail(*arguments, **options):
        raise torch.onnx.OnnxExporterError("no such operator")

    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(RuntimeError, match="to_program"):
        to_onnx(trained(Similarity()), torch.rand(2, *SHAPE), tmp_path / "model.onnx")


def test_export_leaves_the_model_as_it_was():
    model = trained(Similarity()).train()
    model.body[0].eval()  # as batch statistics that are to stay as they are
    to_program(model, torch.rand(2, *SHAPE))
    assert model.training
    assert not model.body[0].training


def test_one_example_is_not_enough():
    with pytest.raises(ValueError, match="at least 2"):
        to_program(trained(Similarity()), torch.rand(1, *SHAPE))
