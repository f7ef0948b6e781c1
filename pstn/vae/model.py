"""Variational autoencoders of pictures, with or without a spatial transformer in front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pstn.families.base import Family
from pstn.grid import check_array, check_choice
from pstn.stn import STN
from pstn.vae.layers import decoder, encoder
from pstn.vae.output import Drawing
from pstn.vae.pose import undo
from pstn.warp import warp

Compare = Literal["observed", "canonical"]


class VAE(nn.Module):
    r"""A variational autoencoder: :math:`z \sim N(\mu(x), \sigma(x)^2)`, a picture drawn from z, prior N(0, I).

    With a transformer in front, the encoder sees the picture in canonical pose, :math:`c = x \circ T_\theta`, and the
    decoder draws it so. Compared in the ``"observed"`` pose, the drawing is put back where the picture was seen, by
    :math:`T_\theta^{-1}`: whatever the transformation explains, the code need not hold, and a code that holds less has
    the smaller divergence. So nothing but the bound is needed for the two to learn together. Compared in the
    ``"canonical"`` pose, the target is what the transformer made of the picture, as for one that was trained before;
    one that learns would make the target easy, an empty picture.

    References:
        Auto-Encoding Variational Bayes (Kingma & Welling, 2014).
        An Investigation Into Transformation-Invariant Variational Autoencoders (Williams, 2024).

    Arguments:
        shape: One picture's shape, (C, H, W), as the encoder sees it.
        latent: How many numbers the code has.
        hidden: Channels of the encoder's layers. The decoder has them backwards and half as many, each of its
            convolutions four times as many on the way.
        front: A transformer in front: an ``STN`` whose body passes pictures on, :func:`front`; any family that has an
            inverse, any posterior.
        compare: Where drawing and picture are compared, ``"observed"`` or ``"canonical"``.

    Example:
        >>> from pstn import Similarity, StudentT
        >>> from pstn.vae import front
        >>> model = VAE((1, 28, 28), latent=10, front=front((1, 28, 28), Similarity(), StudentT()))
        >>> out = model(torch.rand(5, 1, 28, 28), samples=3)
        >>> out.drawn.shape, out.z.shape, out.kl.shape
        (torch.Size([3, 5, 1, 28, 28]), torch.Size([3, 5, 10]), torch.Size([5]))
    """

    def __init__(
        self,
        shape: Sequence[int],
        latent: int = 10,
        *,
        hidden: Sequence[int] = (16, 32, 64),
        front: STN | None = None,
        compare: Compare = "observed",
    ) -> None:
        super().__init__()
        if latent < 1:
            raise ValueError(f"latent is {latent}; a code needs at least one number")
        check_choice("compare", compare, get_args(Compare))
        if front is not None and (front.family is None or front.placement.parallel > 1):
            raise ValueError("front must be one transformer: STN(nn.Identity(), localizer, family, posterior)")
        if front is not None and type(front.family).inverse is Family.inverse:  # type: ignore[union-attr]
            raise TypeError(f"{front.family} has no inverse: a drawing cannot be put back where the picture was seen")
        self.shape, self.latent, self.compare = tuple(shape), latent, compare
        self.front = front
        self.encoder = encoder(shape, self.numbers, hidden)
        self.decoder = decoder(shape, self.width, [max(1, n // 2) for n in hidden])

    @property
    def numbers(self) -> int:
        """How many numbers the encoder gives: a mean and a log-variance for each of the code's."""
        return 2 * self.latent

    @property
    def width(self) -> int:
        """How many numbers a code has."""
        return self.latent

    @property
    def transformers(self) -> Sequence[nn.Module]:
        """The transformers of the front, which may learn at a rate of their own."""
        return () if self.front is None else self.front.transformers  # type: ignore[return-value]

    def centre(self, h: Float[Tensor, "*b n"]) -> Float[Tensor, "*b f"]:
        """The centre of q(z|x) for the encoder's numbers: its mean."""
        return h[..., : self.latent]

    def draw(self, h: Float[Tensor, "*b n"]) -> Float[Tensor, "*b f"]:
        """A code from q(z|x), reparametrised."""
        mean, spread = h.chunk(2, dim=-1)
        return mean + (0.5 * spread).exp() * torch.randn_like(mean)

    def divergence(self, h: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        r"""KL(q(z|x) || p(z)) in nats: :math:`\frac12 \sum (\mu^2 + \sigma^2 - 1 - \log \sigma^2)`."""
        mean, spread = h.chunk(2, dim=-1)
        return 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(-1)

    def prior(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "n f"]:
        """Codes from p(z), (N, F)."""
        like = next(self.parameters())
        return torch.randn(count, self.width, generator=generator, device=like.device, dtype=like.dtype)

    def forward(self, x: Float[Tensor, "b c h w"], samples: int = 1) -> Drawing:
        """Encode pictures, draw codes, decode them.

        Arguments:
            x: Pictures, (B, C, H, W).
            samples: How many transformations and codes to draw for each; 0 for the centres of both, without randomness.
        """
        self._check(x)
        if samples < 0:
            raise ValueError(f"samples is {samples}; expected 0 (the centres) or more")
        pose = None if self.front is None else self.front(x, samples=samples)
        seen = x[None] if pose is None else pose.warped
        h = self._encode(seen)
        centre = self.centre(h)
        z = centre if samples == 0 else self.draw(h.expand(max(samples, len(h)), *h.shape[1:]))
        canonical = self.decode(z)
        drawn, target = canonical, seen
        if pose is not None and self.compare == "observed":
            drawn, target = self._back(canonical, pose.theta, x.shape[2:]), x[None]
        return Drawing(drawn, target, canonical, centre, z, self.divergence(h).mean(0), pose)

    def encode(self, x: Float[Tensor, "b c h w"], samples: int = 0) -> Float[Tensor, "b f"]:
        """The codes of pictures, (B, F): the centre of q(z|x), averaged over so many draws of the transformation.

        Arguments:
            x: Pictures, (B, C, H, W).
            samples: How many transformations to draw; 0 for the centre of their posterior.
        """
        return self.centre(self._look(x, samples)).mean(0)

    def features(self, x: Float[Tensor, "b c h w"], samples: int = 0) -> Float[Tensor, "b f"]:
        """What a linear classifier should read of pictures, (B, F): here the codes themselves.

        Arguments:
            x: Pictures, (B, C, H, W).
            samples: As for :meth:`encode`.
        """
        return self.encode(x, samples)

    def decode(self, z: Float[Tensor, "*b f"]) -> Float[Tensor, "*b c h w"]:
        """The pictures, in canonical pose, that codes stand for."""
        if z.shape[-1:] != (self.width,):
            raise ValueError(f"codes have shape {tuple(z.shape)}; expected (..., {self.width})")
        return self.decoder(z.reshape(-1, self.width)).reshape(*z.shape[:-1], *self.shape)

    @torch.no_grad()
    def reconstruct(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """The pictures as drawn from the centres of their codes, where they are compared."""
        _check_finite(x)
        return self(x, samples=0).drawn[0]

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "n c h w"]:
        """New pictures, in canonical pose, from codes of the prior."""
        return self.decode(self.prior(count, generator))

    @torch.no_grad()
    def interpolate(
        self, a: Float[Tensor, "b c h w"], b: Float[Tensor, "b c h w"], steps: int = 8
    ) -> Float[Tensor, "n b c h w"]:
        """Pictures along the straight lines from the codes of ``a`` to those of ``b``, ends included."""
        weight = torch.linspace(0, 1, steps, device=a.device, dtype=a.dtype)[:, None, None]
        return self.decode(torch.lerp(self.encode(a), self.encode(b), weight))

    @torch.no_grad()
    def traverse(self, x: Float[Tensor, "1 c h w"], reach: float = 2.5, steps: int = 9) -> Float[Tensor, "f n c h w"]:
        """One picture's code with each of its numbers in turn set to values from -reach to reach.

        Arguments:
            x: The picture, (1, C, H, W).
            reach: The largest value.
            steps: How many values.
        """
        code = self.encode(x)[0].expand(self.width, steps, self.width).clone()
        values = torch.linspace(-reach, reach, steps, device=x.device)
        for number in range(self.width):
            code[number, :, number] = values
        return self.decode(code)

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        return f"latent={self.latent}, compare={self.compare!r}"

    def _look(self, x: Tensor, samples: int) -> Tensor:
        """The encoder's numbers for pictures in canonical pose, (S, B, N)."""
        self._check(x)
        _check_finite(x)
        return self._encode(x[None] if self.front is None else self.front(x, samples=samples).warped)

    def _encode(self, seen: Tensor) -> Tensor:
        return self.encoder(seen.flatten(0, 1)).unflatten(0, seen.shape[:2])

    def _back(self, canonical: Tensor, theta: Tensor, size: torch.Size) -> Tensor:
        """The decoder's pictures put where the inputs were seen."""
        assert self.front is not None
        assert self.front.family is not None
        back = undo(self.front.family, theta.expand(len(canonical), *theta.shape[1:]))
        options: dict[str, Any] = dict(self.front.options)
        drawn = warp(canonical.flatten(0, 1), self.front.family, back.flatten(0, 1), size=size, **options)
        return drawn.unflatten(0, canonical.shape[:2])

    def _check(self, x: Tensor) -> None:
        check_array(x)
        wanted = self.shape if self.front is None or self.front.size is None else (self.shape[0], "H", "W")
        if x.ndim != 4 or (wanted == self.shape and x.shape[1:] != self.shape) or x.shape[1] != self.shape[0]:
            raise ValueError(f"pictures have shape {tuple(x.shape)}; expected (B, {', '.join(map(str, wanted))})")


class CategoricalVAE(VAE):
    r"""A variational autoencoder whose code is of categories: ``latent`` variables with ``categories`` values each.

    A draw is relaxed by the Gumbel-softmax, :math:`z = \mathrm{softmax}((\log \pi(x) + g) / \tau)`. The temperature
    falls from batch to batch of training, :math:`\tau = \max(\tau_1, \tau_0 e^{-rn})`: the colder, the nearer a draw is
    to one category.

    References:
        Categorical Reparameterization with Gumbel-Softmax (Jang, Gu & Poole, 2017).

    Arguments:
        shape: One picture's shape, (C, H, W), as the encoder sees it.
        latent: How many variables the code has.
        categories: How many values each can take.
        temperature: τ₀, at the start.
        coldest: τ₁, in the end.
        rate: r, how fast it falls.
        options: As for :class:`VAE`.

    Example:
        >>> model = CategoricalVAE((1, 28, 28), latent=10, categories=10)
        >>> model.encode(torch.rand(5, 1, 28, 28)).unflatten(1, (10, 10)).sum(-1)[0, 0]
        tensor(1., grad_fn=<SelectBackward0>)
    """

    age: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        latent: int = 10,
        categories: int = 10,
        *,
        temperature: float = 1.0,
        coldest: float = 0.5,
        rate: float = 3e-4,
        hidden: Sequence[int] = (16, 32, 64),
        front: STN | None = None,
        compare: Compare = "observed",
    ) -> None:
        if categories < 2:
            raise ValueError(f"categories is {categories}; a variable needs at least two values")
        if not 0 < coldest <= temperature < math.inf or rate < 0:
            raise ValueError(
                f"the temperature goes from {temperature} to {coldest} at rate {rate}; expected positive numbers, the "
                "second no larger than the first, and a rate of at least 0"
            )
        self.categories = categories
        super().__init__(shape, latent, hidden=hidden, front=front, compare=compare)
        self.hottest, self.coldest, self.rate = temperature, coldest, rate
        # batches seen in training; part of the state, since the temperature is a function of it
        self.register_buffer("age", torch.zeros(()))

    @property
    def numbers(self) -> int:
        """How many numbers the encoder gives: a logit for each category."""
        return self.width

    @property
    def width(self) -> int:
        """How many numbers a code has."""
        return self.latent * self.categories

    @property
    def temperature(self) -> Float[Tensor, ""]:
        """The temperature now."""
        return (self.hottest * (-self.rate * self.age).exp()).clamp(min=self.coldest)

    def centre(self, h: Float[Tensor, "*b n"]) -> Float[Tensor, "*b f"]:
        """The probabilities of the categories."""
        return self._variables(h).softmax(-1).flatten(-2)

    def features(self, x: Float[Tensor, "b c h w"], samples: int = 0) -> Float[Tensor, "b f"]:
        """The logarithms of the probabilities: a probability that is almost 0 or 1 still says how nearly.

        Arguments:
            x: Pictures, (B, C, H, W).
            samples: As for :meth:`encode`.
        """
        return self._variables(self._look(x, samples)).log_softmax(-1).flatten(-2).mean(0)

    def draw(self, h: Float[Tensor, "*b n"]) -> Float[Tensor, "*b f"]:
        """A relaxed draw of each variable, reparametrised."""
        logits = self._variables(h)
        tiny = torch.finfo(logits.dtype).tiny
        noise = -(-torch.rand_like(logits).clamp(min=tiny).log()).clamp(min=tiny).log()
        return ((logits + noise) / self.temperature).softmax(-1).flatten(-2)

    def divergence(self, h: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        r"""KL(q(z|x) || p(z)) in nats to uniform categories: :math:`\sum \pi \log \pi + \log K`."""
        logs = self._variables(h).log_softmax(-1)
        return ((logs.exp() * logs).sum(-1) + math.log(self.categories)).sum(-1)

    def prior(self, count: int, generator: torch.Generator | None = None) -> Float[Tensor, "n f"]:
        """Codes from p(z), (N, F): one category of each variable."""
        like = next(self.parameters())
        chosen = torch.randint(self.categories, (count, self.latent), generator=generator, device=like.device)
        return nn.functional.one_hot(chosen, self.categories).to(like.dtype).flatten(1)

    def forward(self, x: Float[Tensor, "b c h w"], samples: int = 1) -> Drawing:
        """As :meth:`VAE.forward`; in training, the temperature falls."""
        out = super().forward(x, samples)
        if self.training:
            self.age.add_(1)
        return out

    @torch.no_grad()
    def traverse(self, x: Float[Tensor, "1 c h w"], reach: float = 1.0, steps: int = 9) -> Float[Tensor, "f n c h w"]:
        """One picture's code with each variable in turn set to each of its categories, (latent, categories, ...).

        Arguments:
            x: The picture, (1, C, H, W).
            reach: How sure of the category; 1 for certain.
            steps: At most so many categories.
        """
        count = min(steps, self.categories)
        code = self.encode(x)[0].view(self.latent, self.categories).expand(self.latent, count, -1, -1).clone()
        sure = torch.eye(self.categories, device=x.device, dtype=code.dtype)[:count]
        for variable in range(self.latent):
            code[variable, :, variable] = torch.lerp(code[variable, :, variable], sure, reach)
        return self.decode(code.flatten(-2))

    def extra_repr(self) -> str:
        """What ``repr`` shows inside the brackets."""
        falls = f"temperature={self.hottest}, coldest={self.coldest}, rate={self.rate}"
        return f"{super().extra_repr()}, categories={self.categories}, {falls}"

    def _variables(self, h: Tensor) -> Tensor:
        return h.unflatten(-1, (self.latent, self.categories))


def _check_finite(x: Tensor) -> None:
    # not in forward: it waits for the device, which a step of training must not
    if not x.isfinite().all():
        raise ValueError("the pictures have NaN or infinite pixels; fill them in or drop these pictures")
