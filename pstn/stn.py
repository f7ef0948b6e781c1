"""The model: a body that classifies, transformers that decide where it looks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence

from pstn.distributions import draw, normal_like
from pstn.families.base import Family
from pstn.grid import Padding, check_array
from pstn.placement import CNN, Placement
from pstn.posterior import Head, Point, Posterior
from pstn.tabled import Tabled
from pstn.warp import warp

if TYPE_CHECKING:
    from pstn.distributions import Method


@dataclass
class Stage:
    """What one look of one transformer said."""

    theta: Float[Tensor, "s b d"]
    """The parameters as drawn, before composition; (K, B, d) from K starts."""
    posterior: Distribution
    """What they were drawn from: batch (B,) for the first look, (S, B) for those that saw a sampled warp, (K, B) from
    K starts."""
    prior: Distribution | None
    """The prior that belongs to it; None for a point mass."""


@dataclass
class Output:
    """What an :class:`STN` returns."""

    logits: Float[Tensor, "s b *k"]
    """The body's answers, (S, B, *K); from several starts, the logarithms of the mixed probabilities."""
    stages: tuple[Stage, ...] = ()
    """The looks, in order; none for a plain network."""
    theta: Float[Tensor, "s b *n d"] | None = None
    """The parameters of the last warp, all looks composed: (S, B, d), or (S, B, N, d) for N in parallel; from several
    starts, those of the most probable."""
    warped: Float[Tensor, "s b ..."] | None = None
    """What the last warp gave, (S, B, C, *size)."""
    weights: Float[Tensor, "k b"] | None = None
    """How probable each of K starts is, (K, B); None without."""

    @property
    def posterior(self) -> Distribution | None:
        """The first look's posterior, the only one in most models."""
        return self.stages[0].posterior if self.stages else None

    @cached_property
    def kl(self) -> Float[Tensor, " b"]:
        r"""The divergence :math:`KL(q \| p)` of each input, summed over looks, averaged over samples."""
        total = self.logits.new_zeros(self.logits.shape[1], dtype=torch.float32)
        for stage in self.stages:
            if stage.prior is not None and len(total):  # torch has no divergences of no inputs
                kl = kl_divergence(stage.posterior, stage.prior)
                total = total + (kl.mean(0) if kl.ndim > 1 else kl)
        return total


class Transformer(nn.Module):
    """One localizer with its head: features in, a distribution over parameters out.

    Arguments:
        trunk: Layers of its own in front of the localizer, or None.
        localizer: Maps what it sees to features, (N, F) or anything that flattens to it.
        head: Maps features to a distribution.
        judge: Maps features to one number, how good a start is; None without starts.
    """

    def __init__(
        self, trunk: nn.Module | None, localizer: nn.Module, head: Head, judge: nn.Linear | None = None
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.localizer = localizer
        self.head = head
        self.judge = judge

    def forward(self, seen: Tensor, batch: Sequence[int]) -> Distribution:
        """The posterior of a flat batch of views, with the given batch shape."""
        return self.head(self.features(seen, batch))

    def features(self, seen: Tensor, batch: Sequence[int]) -> Tensor:
        """What the head reads of a flat batch of views, (*batch, F)."""
        features = self.localizer(seen if self.trunk is None else self.trunk(seen))
        return features.flatten(1).unflatten(0, tuple(batch))


class STN(Tabled):
    r"""A spatial transformer network: :math:`p(y|x) = \mathbb{E}_{q(\theta|x)}\,p(y\,|\,x \circ T_\theta)`.

    One class for all of them. The posterior says what is known of the transformation (a point for the STN, Gaussian or
    Student-t for the P-STN), the placement where the network looks and what it warps. At the start every look is the
    identity.

    Convention: as everywhere; see :func:`pstn.warp.warp` for ``size``, ``fill``, ``padding`` and ``antialias``.

    Arguments:
        body: The classifier, from inputs to logits (B, K) or to an object with ``logits``. A ``nn.Sequential`` where
            the placement counts its children (depths above 0).
        localizer: Reads the input, or the features at its depth; one, or one for each depth. None for ``CNN``.
        family: The family of transformations.
        posterior: ``Point()``, ``Gaussian(...)`` or ``StudentT(...)``.
        placement: ``C(0)`` and its kin; by default the classical place, in front of the body, or ``CNN`` without
            localizer.
        features: How many features the localizer returns; found by itself when the localizer has ``out_features`` or
            ends in a linear layer.
        branch: With parallel looks merged as branches: the network each look goes through before the body sees the
            joined features; one that is copied, or one for each.
        size: The spatial size of the warped input.
        fill: The value outside the input.
        padding: ``"fill"``, ``"border"`` or ``"reflect"``.
        antialias: Whether to average where a warp shrinks.
        frozen: Whether the body stays as it is: no gradients, and neither dropout nor batch statistics move.

    References:
        Jaderberg et al. 2015; Finnveden et al. 2020; Schwöbel et al. 2020 and 2022

    Example:
        >>> from pstn import Similarity, StudentT, nets
        >>> model = STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), Similarity(), StudentT())
        >>> out = model(torch.rand(5, 1, 28, 28), samples=3)
        >>> out.logits.shape, out.theta.shape
        (torch.Size([3, 5, 10]), torch.Size([3, 5, 4]))
    """

    def __init__(
        self,
        body: nn.Module,
        localizer: nn.Module | Sequence[nn.Module] | None = None,
        family: Family | None = None,
        posterior: Posterior | None = None,
        placement: Placement | None = None,
        *,
        features: int | Sequence[int] | None = None,
        branch: nn.Module | Sequence[nn.Module] | None = None,
        size: Sequence[int] | None = None,
        fill: float = 0.0,
        padding: Padding = "fill",
        antialias: bool = False,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.placement = (CNN if localizer is None else Placement()) if placement is None else placement
        self.body = body
        self.family = family
        self.posterior = Point() if posterior is None else posterior
        self.options = {"fill": fill, "padding": padding, "antialias": antialias}
        self.size = None if size is None else tuple(size)
        self.frozen = frozen
        self._check_body()
        self.transformers = nn.ModuleList(self._transformers(localizer, features))
        self.branches = nn.ModuleList(self._branches(branch))
        self._check_starts()
        self.lay_tables()
        if frozen:
            for module in (self.body, self.branches):
                module.requires_grad_(False)
        self.train()

    def tables(self) -> dict[str, Tensor | None]:
        """The windows of parallel looks, (N, 1 + ndim), and the starts, (K, d)."""
        windows = None if self.family is None else self.placement.windows(self.family.ndim)
        return {"windows": windows, "starts": torch.tensor(self.placement.starts) if self.placement.starts else None}

    def forward(
        self,
        x: Float[Tensor, "b c *space"],
        samples: int = 1,
        *,
        method: Method = "random",
        generator: torch.Generator | None = None,
    ) -> Output:
        """Classify S warps of each input.

        Arguments:
            x: Inputs, (B, C, *space).
            samples: How many transformations to draw; 0 for the posterior's centre, without randomness. A point mass
                has one sample whatever is asked.
            method: ``"random"``, ``"antithetic"`` or ``"sobol"``.
            generator: The source of randomness; torch's own by default.
        """
        check_array(x)
        if samples < 0:
            raise ValueError(f"samples is {samples}; expected 0 (the posterior's centre) or more")
        if isinstance(self.posterior, Point):
            samples = 0
        if self.placement.starts:
            return self._from_starts(x)
        stages: list[Stage] = []
        batch, count = x.shape[0], max(samples, 1)
        seen: Tensor = x  # what the next localizer reads: (B, ...) until the first draw, (S·B, ...) after it
        pose: Tensor | None = None
        behind = 0  # how many layers of the body are behind what was seen
        warped: Tensor | None = None

        transformers: list[Transformer] = list(self.transformers)  # type: ignore[arg-type]
        for depth, transformer in zip(self.placement.depths, transformers, strict=True):
            on_features = self.placement.warps == "features"
            if on_features:
                seen = self._through(seen, behind, depth)
                behind, source, pose = depth, seen, None
            else:
                source = x
            for _ in range(self.placement.looks(self.training)):
                read = self._through(seen, 0, depth) if self.placement.shared else seen
                q = transformer(read, (count, batch) if stages else (batch,))
                theta = self._draw(q, samples, bool(stages), method, generator)
                stages.append(Stage(theta, q, transformer.head.prior(q)))
                if self.placement.parallel > 1:
                    return self._side_by_side(x, theta, stages, generator)
                assert self.family is not None
                pose = theta if pose is None else self.family.compose(pose, theta)
                warped = self._noisy(self._warp(source, pose, resize=not on_features or depth == 0), generator)
                seen = warped.flatten(0, 1)

        logits = answered(self._through(seen, behind, None))
        return Output(logits.unflatten(0, (count if stages else 1, batch)), tuple(stages), pose, warped)

    def train(self, mode: bool = True) -> STN:
        """Set training mode, except for a frozen body."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
            self.branches.eval()
        return self

    def _through(self, x: Tensor, start: int, stop: int | None) -> Tensor:
        """The input through the body's children from start to stop."""
        if start == 0 and stop is None:
            return self.body(x)
        if start == stop:
            return x
        for layer in list(self.body.children())[start:stop]:
            x = layer(x)
        return x

    def _draw(
        self, q: Distribution, samples: int, sampled: bool, method: Method, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, d) parameters: S draws for each input at the first look, one for each sampled view after it."""
        if samples == 0:
            return q.mode if sampled else q.mode.unsqueeze(0)
        if sampled:
            return draw(q, 1, method=method, generator=generator).squeeze(0)
        return draw(q, samples, method=method, generator=generator)

    def _warp(self, source: Tensor, pose: Tensor, resize: bool, window: Tensor | None = None) -> Tensor:
        """(S, B, C, *size) warps of (B, ...) sources, or of (S·B, ...) sources with one pose each."""
        assert self.family is not None
        count, batch = pose.shape[:2]
        each = source.shape[0] == batch
        warped = warp(
            source,
            self.family,
            pose if each else pose.flatten(0, 1),
            size=self.size if resize else None,
            window=window,
            **self.options,  # type: ignore[arg-type]
        )
        return warped if each else warped.unflatten(0, (count, batch))

    def _noisy(self, warped: Tensor, generator: torch.Generator | None) -> Tensor:
        """What was warped, in training with the noise that the posterior adds."""
        noise = getattr(self.posterior, "image_noise", 0.0)
        return warped + noise * normal_like(warped, generator) if noise and self.training else warped

    def _side_by_side(self, x: Tensor, theta: Tensor, stages: list[Stage], generator: torch.Generator | None) -> Output:
        """N looks at the same input, stacked as channels or each through its branch."""
        n = self.placement.parallel
        count, batch = theta.shape[:2]
        poses = theta.unflatten(-1, (n, -1))
        windows: Tensor | None = self.windows  # type: ignore[assignment]
        if windows is not None:
            windows = windows[None, :, None].expand(count, n, batch, -1).flatten(0, 1)
        warped = self._warp(x, poses.transpose(1, 2).flatten(0, 1), resize=True, window=windows)
        warped = self._noisy(warped, generator)
        looks = warped.unflatten(0, (count, n))
        if self.placement.merge == "channels":
            seen = looks.transpose(1, 2).flatten(2, 3).flatten(0, 1)
        else:
            features = [
                branch(look.flatten(0, 1)).flatten(1)
                for branch, look in zip(self.branches, looks.unbind(1), strict=True)
            ]
            seen = torch.cat(features, dim=1)
        logits = answered(self.body(seen)).unflatten(0, (count, batch))
        return Output(logits, tuple(stages), poses, looks.transpose(1, 2))

    def extra_repr(self) -> str:
        """The placement and the output's size where they are not the usual ones."""
        usual = (CNN, Placement())
        return ", ".join(
            [f"placement={self.placement}"] * (self.placement not in usual)
            + [f"size={self.size}"] * (self.size is not None)
        )

    def _from_starts(self, x: Tensor) -> Output:
        r"""A look from each of K starts; the answers are mixed, :math:`p(y|x) = \sum_k p(k|x)\,p(y|x, \theta_k)`.

        A start is a first look that was not drawn: the localizer sees the input warped by it, and what it says is
        composed with it.
        """
        assert self.family is not None
        transformer: Transformer = self.transformers[0]  # type: ignore[assignment]
        starts: Tensor = self.starts[:, None].expand(-1, x.shape[0], -1)  # type: ignore[index]
        seen = self._warp(x, starts, resize=True)
        features = transformer.features(seen.flatten(0, 1), starts.shape[:2])
        q = transformer.head(features)
        pose = self.family.compose(starts.to(q.mode), q.mode)
        warped = self._warp(x, pose, resize=True)
        answers = answered(self.body(warped.flatten(0, 1))).unflatten(0, pose.shape[:2])
        if answers.ndim != 3:
            raise ValueError(f"several starts mix answers (N, K) to one question; the body gave {answers.shape[1:]}")
        work = torch.promote_types(answers.dtype, torch.float32)
        weights = transformer.judge(features).squeeze(-1).to(work).log_softmax(0)  # type: ignore[misc]
        # The mixture's logarithm is an answer like any other: softmax leaves it as it is.
        logits = (answers.to(work).log_softmax(-1) + weights[..., None]).logsumexp(0, keepdim=True)
        best = weights.argmax(0, keepdim=True)
        stage = Stage(q.mode, q, None)
        return Output(logits, (stage,), _pick(pose, best), _pick(warped, best), weights.exp())

    def _check_body(self) -> None:
        deepest = max(self.placement.depths, default=0)
        if deepest == 0:
            return
        if not isinstance(self.body, nn.Sequential):
            raise TypeError(f"depth {deepest} counts the body's layers: the body must be nn.Sequential")
        if deepest > len(self.body):
            raise ValueError(f"depth {deepest} is beyond the body's {len(self.body)} layers")

    def _transformers(
        self, localizer: nn.Module | Sequence[nn.Module] | None, features: int | Sequence[int] | None
    ) -> list[Transformer]:
        depths, family = self.placement.depths, self.family
        if not depths:
            if localizer is not None:
                raise ValueError("the placement has no transformer, but a localizer was given")
            return []
        if localizer is None or family is None:
            raise ValueError(f"a transformer at depth {depths[0]} needs a localizer and a family")
        if self.placement.composes and type(family).compose is Family.compose:
            raise TypeError(f"several looks compose their parameters; {type(family).__name__} does not compose")
        localizers = [localizer] if isinstance(localizer, nn.Module) else list(localizer)
        if len(localizers) != len(depths):
            raise ValueError(f"{len(localizers)} localizers for the depths {depths}: one for each is needed")
        counts = list(features) if isinstance(features, Sequence) else [features] * len(depths)
        made = []
        for depth, module, count in zip(depths, localizers, counts, strict=True):
            own = self.placement.warps == "input" and not self.placement.shared and depth > 0
            trunk = copy.deepcopy(self.body[:depth]) if own else None  # type: ignore[index]
            width = count_features(module) if count is None else count
            head = self.posterior.head(width, family.dim * self.placement.parallel)
            judge = None
            if self.placement.starts:  # as good as each other to begin with
                judge = nn.Linear(width, 1)
                nn.init.zeros_(judge.weight)
                nn.init.zeros_(judge.bias)
            made.append(Transformer(trunk, module, head, judge))
        return made

    def _check_starts(self) -> None:
        starts = self.placement.starts
        if not starts:
            return
        if not isinstance(self.posterior, Point):
            raise ValueError(f"several starts are a mixture of points; expected Point(), not {self.posterior}")
        assert self.family is not None
        if len(starts[0]) != self.family.dim:
            raise ValueError(f"starts have {len(starts[0])} parameters; {self.family.label} has {self.family.dim}")

    def _branches(self, branch: nn.Module | Sequence[nn.Module] | None) -> list[nn.Module]:
        n, wanted = self.placement.parallel, self.placement.merge == "branches" and self.placement.parallel > 1
        if wanted and branch is None:
            raise ValueError("merge='branches' needs branch=, the network that each look goes through")
        if branch is None:
            return []
        if not wanted:
            raise ValueError("branch= belongs to parallel transformers with merge='branches'")
        if not isinstance(branch, nn.Module):
            if len(branch) != n:
                raise ValueError(f"{len(branch)} branches for {n} looks: one for each is needed")
            return list(branch)
        copies = [branch, *(copy.deepcopy(branch) for _ in range(n - 1))]
        for module in (m for c in copies[1:] for m in c.modules()):
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()  # branches that start equal would stay alike
        return copies


def answered(answer: Any) -> Tensor:
    """The logits in what a network returned: a tensor, or an object that has them."""
    found = getattr(answer, "logits", answer)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the network returned a {type(answer).__name__}; expected logits (B, K), or an object with logits: put it "
            "into a module that returns them alone"
        )
    return found


def _pick(values: Float[Tensor, "k b ..."], best: Integer[Tensor, "1 b"]) -> Float[Tensor, "1 b ..."]:
    """The values of one start for each input."""
    # gather itself: torch.take_along_dim would fix the batch size of an exported program
    return values.gather(0, best.view(1, -1, *[1] * (values.ndim - 2)).expand(1, *values.shape[1:]))


def count_features(localizer: nn.Module) -> int:
    """How many features a localizer returns: its ``out_features``, or those of the linear layer it ends in."""
    own = getattr(localizer, "out_features", None)
    if isinstance(own, int):
        return own
    leaves = [m for m in localizer.modules() if next(m.children(), None) is None and any(True for _ in m.parameters())]
    if leaves and isinstance(leaves[-1], nn.Linear):
        return leaves[-1].out_features
    raise ValueError("cannot tell how many features the localizer returns: give STN(..., features=N)")


def param_groups(model: nn.Module, lr: float = 1e-3, localizer: float = 0.1) -> list[dict]:
    """Two groups for an optimiser: the body at ``lr``, the transformers at ``lr`` times ``localizer``.

    Arguments:
        model: An :class:`STN`; any other module is one group.
        lr: The learning rate.
        localizer: The factor for localizers and heads. The papers use 0.1, less for deeper placements.

    Example:
        >>> [group["lr"] for group in param_groups(STN(nn.Flatten()), lr=0.5)]
        []
    """
    inside = {id(p) for t in getattr(model, "transformers", ()) for p in t.parameters()}
    groups: dict[float, list[nn.Parameter]] = {1.0: [], localizer: []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups[localizer if id(parameter) in inside else 1.0].append(parameter)
    return [{"params": parameters, "lr": lr * factor} for factor, parameters in groups.items() if parameters]
