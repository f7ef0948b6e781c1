"""Small data as people have it."""

import numpy as np
from PIL import Image

from pstn.data import cbf


def bars(folder, per_class=8, size=(16, 16), seed=0, colour=False):
    """Folders of small pictures: a bar that stands, and a bar that lies."""
    generator = np.random.default_rng(seed)
    for name in ("standing", "lying"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(per_class):
            picture = generator.integers(0, 60, size, np.uint8)
            middle = generator.integers(6, 10)
            if name == "standing":
                picture[3:13, middle - 1 : middle + 1] = 255
            else:
                picture[middle - 1 : middle + 1, 3:13] = 255
            picture = np.stack([picture, picture // 2, picture], axis=-1) if colour else picture
            Image.fromarray(picture).save(folder / name / f"{i}.png")
    return folder


def series_csv(path, n=24, header=True, label="class"):
    data = cbf(n, length=40, seed=0)
    lines = [",".join([*(f"t{i}" for i in range(40)), label])] if header else []
    lines += [
        ",".join([*(f"{v:.4f}" for v in x[0]), data.classes[int(y)]]) for x, y in zip(data.x, data.y, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
