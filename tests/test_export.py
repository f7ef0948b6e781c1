"""The mean path leaves the library: torch.export and ONNX, any batch size, the same numbers."""

import numpy as np
import pytest
import torch

from pstn import CNN, DL, SL, STN, C, Gaussian, Point, StudentT, nets
from pstn.export import MeanPath, to_onnx, to_program
from pstn.families import TPS, Affine, Crop, Projective, Rotation, Similarity

SHAPE = (1, 20, 20)


def trained(family, posterior=None, placement=None):
    torch.manual_seed(0)
    placement = C(0) if placement is None else placement
    shape = (1, *SHAPE[1:]) if 1 not in placement.depths else (4, 9, 9)
    localizer = nets.localizer(shape, channels=(4,), kernel=3) if placement.depths else None
    body = nets.classifier(SHAPE, 10, channels=(4, 5), kernel=3)
    model = STN(body, localizer, family if placement.depths else None, posterior or StudentT(), placement, fill=-0.4)
    for transformer in model.transformers:
        torch.nn.init.normal_(transformer.head.loc[-1].weight, std=0.02)
    return model.eval()


CASES = {
    "similarity": (Similarity(), StudentT(), C(0)),
    "rotation": (Rotation(), Gaussian(), C(0)),
    "crop": (Crop(), Point(), C(0)),
    "affine": (Affine(), Gaussian(), C(0)),
    "projective": (Projective(), Point(), C(0)),
    "tps": (TPS(3), StudentT(), C(0)),
    "SL1": (Similarity(), StudentT(), SL(1)),
    "DL1": (Similarity(), StudentT(), DL(1)),
    "two iterations": (Similarity(), Gaussian(), C(0, iterations=2)),
    "cnn": (None, Point(), CNN),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exported_and_onnx_agree_with_the_model(case, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = trained(*case)
    x = torch.rand(5, *SHAPE)
    with torch.no_grad():
        expected = MeanPath(model)(x)
    program = to_program(model, x[:2])
    assert torch.allclose(program.module()(x), expected, atol=1e-6)
    path = to_onnx(model, x[:2], tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (probs,) = session.run(["probs"], {"x": x.numpy()})
    np.testing.assert_allclose(probs, expected.numpy(), atol=1e-5)


def test_export_leaves_the_model_as_it_was():
    model = trained(Similarity()).train()
    to_program(model, torch.rand(2, *SHAPE))
    assert model.training


def test_one_example_is_not_enough():
    with pytest.raises(ValueError, match="at least 2"):
        to_program(trained(Similarity()), torch.rand(1, *SHAPE))
