"""What the page asks for: an upload as an input, moved by hand, what the model says of it, and where it looks."""

from __future__ import annotations

import base64
import io
import math
import tempfile
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pstn.apply.files import Trained
from pstn.apply.measure import as_trained
from pstn.apply.pictures import outline
from pstn.data import read_image
from pstn.distributions import draw
from pstn.families import Similarity
from pstn.warp import warp

#: Draws that the page shows, and the most pixels that an upload may have.
SHOWN, PIXELS = 8, 40_000_000
#: What an upload may be. Pillow reads more, PostScript among it, which it hands to another program to be run.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000")


class Refused(ValueError):
    """An upload that cannot be used; its words are for who sent it.

    Arguments:
        words: What is wrong.
        status: The HTTP status that says so.
    """

    def __init__(self, words: str, status: int = 400) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True)
class Move:
    """How the input is moved by hand before the model sees it.

    Arguments:
        rotation: Degrees, anticlockwise.
        scale: How much larger it appears; 1 for as it is.
        x: Shift to the right, as a share of the width.
        y: Shift down, as a share of the height.
    """

    rotation: float = 0.0
    scale: float = 1.0
    x: float = 0.0
    y: float = 0.0

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.rotation, self.scale, self.x, self.y))) or not 0.05 <= self.scale <= 20:
            raise Refused("rotation, scale, x and y must be numbers, scale between 0.05 and 20")

    def __call__(self, x: Tensor, fill: float, border: bool) -> Tensor:
        """The moved images, (B, C, H, W)."""
        if self == Move():
            return x
        family = Similarity(size=x.shape[2:])
        # what is seen moves against where one looks
        there = torch.tensor([math.radians(self.rotation), -math.log(self.scale), 0.0, 0.0])
        shift = torch.tensor([0.0, 0.0, -2 * self.x, -2 * self.y])
        theta = family.compose(shift, there)
        return warp(x, family, theta[None], fill=fill, padding="border" if border else "fill")


class Looker:
    """A model that answers the page's questions, one at a time.

    Arguments:
        trained: A model of images.
    """

    def __init__(self, trained: Trained) -> None:
        self.trained = trained
        self.border = trained.network.options["padding"] != "fill"
        self.lock = threading.Lock()  # a look changes the network's mode for a moment

    def about(self) -> dict[str, Any]:
        """What the page needs to know of the model."""
        background = float(self.trained.normalise.background)
        return {
            "name": str(self.trained.data.get("name", "model")),
            "classes": list(self.trained.classes),
            "shape": list(self.trained.shape),
            "background": min(max(background, 0.0), 1.0),
            "strength": list(self.trained.measured.get("strength", ())),
        }

    def read(self, upload: bytes) -> Tensor:
        """An uploaded image as the model's input, (1, C, H, W)."""
        if not upload:
            raise Refused("nothing was uploaded; expected an image")
        from PIL import Image

        channels, height, width = self.trained.shape
        try:
            with Image.open(io.BytesIO(upload), formats=FORMATS) as image:
                size = image.size
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise Refused("that is not an image that can be read; expected PNG, JPEG or the like") from error
        if size[0] * size[1] > PIXELS:
            raise Refused(
                f"the image has {size[0]} × {size[1]} pixels; expected at most {PIXELS // 10**6} million", 413
            )
        with tempfile.NamedTemporaryFile() as file:
            file.write(upload)
            file.flush()
            try:
                return read_image(file.name, size=(height, width), colour=channels == 3)[None]
            except ValueError as error:
                raise Refused("the image is damaged, or cut off") from error

    @torch.no_grad()
    def look(self, x: Tensor, move: Move) -> dict[str, Any]:
        """What the model says of an input that was moved by hand, and where it looks, as plain data."""
        trained = self.trained
        moved = move(x, float(trained.normalise.background), self.border)
        with self.lock:
            p = trained.predict(moved)
            draws, frames = self._draws(moved)
        return {
            "class": trained.classes[int(p.labels[0])],
            "probs": [round(v, 5) for v in p.probs[0].tolist()],
            "entropy": round(float(p.entropy[0]), 5),
            "largest_entropy": round(math.log(len(trained.classes)), 5),
            "mutual_information": round(float(p.mutual_information[0]), 5),
            "input": picture(x[0]),
            "moved": picture(moved[0]),
            "draws": [picture(one) for one in draws],
            "frames": frames,
        }

    def _draws(self, x: Tensor) -> tuple[Tensor, list[list[list[float]]]]:
        """Warps of one input as in training, and the outline of each, in shares of width and height."""
        network = self.trained.network
        device = next((p.device for p in network.parameters()), x.device)
        q = as_trained(network, self.trained.prepare(x).to(device)).posterior
        if q is None or network.family is None or network.placement.parallel > 1:
            return x[:0], []
        theta = draw(q, SHOWN, "sobol", torch.Generator().manual_seed(0)).cpu()
        options: dict[str, Any] = {**network.options, "fill": float(self.trained.normalise.background)}
        warped = warp(x, network.family, theta, **options)[:, 0]
        edges = network.family(theta[:, 0], outline(8))
        return warped, [[[round(v, 4) for v in point] for point in edge] for edge in ((edges + 1) / 2).tolist()]


def picture(image: Tensor) -> str:
    """An image (C, H, W) from 0 to 1 as an address that holds it, a PNG."""
    from PIL import Image

    pixels = (image.clamp(0, 1) * 255).round().byte().movedim(0, -1).cpu().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
