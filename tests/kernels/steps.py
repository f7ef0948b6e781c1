"""Steps of stacked networks, for tests of what is made of them once they are recorded."""

import torch
from torch.func import functional_call, vmap

from pstn.train.fleet.convolve import Products


def stacked(network, shape, count=2):
    """A step of stacked copies of a network with weights of their own, and its inputs."""
    weights = [torch.randn(count, *p.shape) for p in network.parameters()]
    names = [name for name, _ in network.named_parameters()]
    still = {name: b.detach().clone().expand(count, *b.shape).clone() for name, b in network.named_buffers()}

    def step(x, *weights):
        weights = [w.detach().requires_grad_() for w in weights]
        kept = {name: value.clone() for name, value in still.items()}
        with torch.enable_grad():
            loss = vmap(one)(x, dict(zip(names, weights, strict=True)), kept)
            return loss.detach(), *torch.autograd.grad(loss.sum(), weights)

    def one(x, weights, still):
        with Products():
            return functional_call(network, (weights, still), (x,)).square().mean()

    return step, [torch.randn(count, *shape), *weights]
