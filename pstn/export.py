"""Models as files that run without this library: ``torch.export`` programs and ONNX graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pstn.families.cpab import CPAB
from pstn.families.cpab.flow import plain

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from pstn.stn import STN


class MeanPath(nn.Module):
    r"""A model that looks once, at its posterior's centre: :math:`p(y\,|\,x \circ T_{\mu(x)})`, without randomness.

    Arguments:
        model: An :class:`pstn.STN`.

    Example:
        >>> from pstn import STN, Similarity, StudentT, nets
        >>> model = STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), Similarity(), StudentT())
        >>> MeanPath(model)(torch.rand(2, 1, 28, 28)).sum(-1)
        tensor([1., 1.], grad_fn=<SumBackward1>)
    """

    def __init__(self, model: STN) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Float[Tensor, "b c *space"]) -> Float[Tensor, " b *k"]:
        """The class probabilities, (B, K)."""
        return self.model(x, samples=0).logits.squeeze(0).softmax(-1)


def to_program(model: STN, example: Float[Tensor, "b c *space"]) -> ExportedProgram:
    """The mean path of a model as a ``torch.export`` program for any batch size.

    Arguments:
        model: An :class:`pstn.STN`; exported in evaluation mode and left in the mode it was in.
        example: Some inputs, at least two, which fix channels and size.
    """
    if len(example) < 2:
        raise ValueError(f"the example has {len(example)} inputs; export needs at least 2 to leave the batch size open")
    training = model.training
    try:
        path = MeanPath(model.eval())
        with torch.no_grad():  # the graph is for predicting; and a loop in it is not traced with gradients
            return torch.export.export(path, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    finally:
        model.train(training)


def to_onnx(model: STN, example: Float[Tensor, "b c *space"], path: str | Path) -> Path:
    """The mean path of a model as an ONNX graph (opset 20) with input ``x`` and output ``probs``, any batch size.

    Needs the extra ``onnx``: ``pip install 'pstn[onnx]'``. A CPAB family becomes plain operations, as exact as here; in
    2-D and 3-D with a ``Loop`` that ends when all points have arrived.

    Arguments:
        model: An :class:`pstn.STN`.
        example: Some inputs, at least two, which fix channels and size.
        path: The file to write.
    """
    try:
        import onnxscript  # noqa: F401 - torch's exporter needs it and says less clearly so
    except ImportError as error:
        raise ImportError("ONNX export needs the extra: pip install 'pstn[onnx]'") from error
    with plain():
        exported = to_program(model, example)
    try:
        program = torch.onnx.export(
            exported,
            input_names=["x"],
            output_names=["probs"],
            opset_version=20,
            dynamo=True,
            verbose=False,
            # the optimiser takes small numbers for zero, and a walk from cell to cell depends on one of 2^-47
            optimize=not any(isinstance(module, CPAB) for module in model.modules()),
        )
    except torch.onnx.OnnxExporterError as error:
        raise RuntimeError(
            f"torch {torch.__version__} cannot write this model as ONNX; to_program(model, example) exports it"
        ) from error
    assert program is not None
    program.save(str(path))
    return Path(path)
