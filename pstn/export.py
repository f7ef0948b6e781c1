"""Models as files that run without this library: ``torch.export`` programs and ONNX graphs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal

from pstn.distributions import Delta, GammaNormal, gamma_quantile
from pstn.families.cpab import CPAB
from pstn.families.cpab.flow import plain
from pstn.grid import check_choice
from pstn.modes import evaluating

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from pstn.stn import STN, Output
    from pstn.wrap import Wrapped

Format = Literal["onnx", "torch.export"]


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

    def __init__(self, model: STN | Wrapped) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Float[Tensor, "b c *space"]) -> Float[Tensor, " b *k"]:
        """The class probabilities, (B, K)."""
        return self.model(x, samples=0).logits.squeeze(0).softmax(-1)


class Fixed(nn.Module):
    r"""A model whose draws are the same at every call: :math:`\theta_s = Q_x(u_s)` at S fixed Sobol points.

    What it says of an input depends on that input alone, neither on its neighbours in the batch nor on what was drawn
    before. :func:`pstn.predict` takes it as it takes any model.

    Arguments:
        model: An :class:`pstn.STN`, whose weights are shared, not copied.
        samples: How many points S; powers of two fill the space most evenly.

    Example:
        >>> from pstn import STN, Similarity, StudentT, nets, predict
        >>> model = STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), Similarity(), StudentT())
        >>> x = torch.rand(3, 1, 28, 28)
        >>> whole, alone = predict(Fixed(model), x), predict(Fixed(model), x[1:2])
        >>> torch.allclose(whole.theta[:, 1:2], alone.theta), whole.theta.shape
        (True, torch.Size([16, 3, 4]))
    """

    def __init__(self, model: STN | Wrapped, samples: int = 16) -> None:
        super().__init__()
        if samples < 1:
            raise ValueError(f"samples is {samples}; expected at least one draw (0 is the mean path's)")
        self.model = model
        self.samples = samples
        # A normal for each parameter and, at most, a precision for each, at every look.
        looks = len(model.transformers) * model.placement.looks(False)
        width = 2 * looks * model.placement.parallel * (0 if model.family is None else model.family.dim)
        points = torch.quasirandom.SobolEngine(max(width, 1), scramble=True, seed=0).draw(samples, dtype=torch.float64)
        eps = torch.finfo(torch.float32).eps
        points = points.clamp(eps, 1 - eps)
        # Quantiles are taken here: neither normal's nor Gamma's is among the operations of ONNX.
        self.register_buffer("normal", torch.special.ndtri(points).float(), persistent=False)
        gamma = gamma_quantile(points, getattr(model.posterior, "alpha", 1.0))
        self.register_buffer("gamma", gamma.float(), persistent=False)

    def forward(self, x: Float[Tensor, "b c *space"]) -> Output:
        """The answers for S warps of each input."""
        used = 0

        def draw(q: Distribution, *rest: Any) -> Tensor:
            nonlocal used
            normal, gamma = (table[:, None, used:].to(q.mode) for table in (self.normal, self.gamma))  # type: ignore[index]
            theta, taken = _at(q, normal, gamma)
            used += taken
            return theta

        still = copy.copy(self.model)  # the same weights, with another source of draws
        object.__setattr__(still, "_draw", draw)
        return still(x, samples=self.samples)


class SampledPath(nn.Module):
    r"""The prediction averaged over S fixed Sobol points: :math:`\frac1S \sum_s p(y\,|\,x \circ T_{\theta_s})`.

    Arguments:
        model: An :class:`pstn.STN`.
        samples: How many points S.

    Example:
        >>> from pstn import STN, Similarity, StudentT, nets
        >>> model = STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), Similarity(), StudentT())
        >>> SampledPath(model, samples=4)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, model: STN | Wrapped, samples: int = 16) -> None:
        super().__init__()
        self.fixed = Fixed(model, samples)

    def forward(self, x: Float[Tensor, "b c *space"]) -> Float[Tensor, " b *k"]:
        """The class probabilities, (B, K)."""
        return self.fixed(x).logits.softmax(-1).mean(0)


def export(
    model: STN | Wrapped, format: Format, path: str | Path, example: Float[Tensor, "b c *space"], *, samples: int = 0
) -> Path:
    """A model as a file that runs without this library, for any batch size; predictions in it draw nothing at random.

    Arguments:
        model: An :class:`pstn.STN`, or what :func:`pstn.wrap` returned.
        format: ``"onnx"``, with input ``x`` and output ``probs``, or ``"torch.export"``, for ``torch.export.load``.
        path: The file to write.
        example: Some inputs, at least two, which fix channels and size; normalised as the model's inputs are.
        samples: 0 for the posterior's centre, S for the average over S fixed Sobol points.

    Returns:
        The file.

    Example:
        >>> import tempfile
        >>> from pstn import STN, Similarity, StudentT, nets
        >>> model = STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), Similarity(), StudentT())
        >>> x = torch.rand(2, 1, 28, 28)
        >>> file = export(model, "torch.export", f"{tempfile.mkdtemp()}/model.pt2", x, samples=4)
        >>> torch.export.load(file).module()(x).shape
        torch.Size([2, 10])
    """
    check_choice("format", format, get_args(Format))
    if format == "onnx":
        return to_onnx(model, example, path, samples=samples)
    with plain():  # CPAB as plain operations: a file that knows nothing of this library's own
        torch.export.save(to_program(model, example, samples=samples), str(path))
    return Path(path)


def to_program(model: STN | Wrapped, example: Float[Tensor, "b c *space"], *, samples: int = 0) -> ExportedProgram:
    """A model as a ``torch.export`` program for any batch size: its mean path, or its average over fixed draws.

    Arguments:
        model: An :class:`pstn.STN`; exported in evaluation mode and left in the mode it was in.
        example: Some inputs, at least two, which fix channels and size.
        samples: 0 for the posterior's centre, S for the average over S fixed Sobol points.
    """
    if not hasattr(model, "transformers") or not hasattr(model, "placement"):
        raise TypeError(f"the model is a {type(model).__name__}; expected an STN, or a network that wrap(...) returned")
    if len(example) < 2:
        raise ValueError(f"the example has {len(example)} inputs; export needs at least 2 to leave the batch size open")
    # The graph is for predicting; and a loop in it is not traced with gradients.
    with torch.no_grad(), evaluating(model):
        path = SampledPath(model, samples) if samples else MeanPath(model)
        return torch.export.export(path, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))


def to_onnx(model: STN | Wrapped, example: Float[Tensor, "b c *space"], path: str | Path, *, samples: int = 0) -> Path:
    """A model as an ONNX graph (opset 20) with input ``x`` and output ``probs``, any batch size.

    Needs the extra ``onnx``: ``pip install 'pstn[onnx]'``. A CPAB family becomes plain operations, as exact as here; in
    2-D and 3-D with a ``Loop`` that ends when all points have arrived.

    Arguments:
        model: An :class:`pstn.STN`.
        example: Some inputs, at least two, which fix channels and size.
        path: The file to write.
        samples: 0 for the posterior's centre, S for the average over S fixed Sobol points.
    """
    try:
        import onnxscript  # noqa: F401 - torch's exporter needs it and says less clearly so
    except ImportError as error:
        raise ImportError("ONNX export needs the extra: pip install 'pstn[onnx]'") from error
    with plain():
        exported = to_program(model, example, samples=samples)
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


def _at(q: Distribution, normal: Tensor, gamma: Tensor) -> tuple[Tensor, int]:
    """Draws (S, B, d) from standard normals and Gamma variates (S, 1, n), and how many of the n were used."""
    d = q.event_shape[0]
    if isinstance(q, Delta):
        return (q.mode if len(q.batch_shape) > 1 else q.mode.unsqueeze(0)), 0
    z = normal[..., :d]
    if isinstance(q, GammaNormal):
        n = q.rate.shape[-1]
        return q.loc + z * (q.rate / gamma[..., d : d + n]).sqrt(), d + n
    if isinstance(q, MultivariateNormal):
        return q.loc + (q.scale_tril @ z.unsqueeze(-1)).squeeze(-1), d
    if isinstance(q, Independent):
        return q.base_dist.loc + q.base_dist.scale * z, d
    raise TypeError(f"a {type(q).__name__} has no fixed draws; samples=0 exports the mean path")
