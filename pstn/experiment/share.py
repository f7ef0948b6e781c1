"""One GPU for several processes at the same time, by NVIDIA's Multi-Process Service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: How much of the GPU one process may fill, in per cent: the small kernels of another find room beside its large ones.
SHARE = 60
#: What a process says that can use the GPU.
TRIED = "import torch; torch.zeros(1, device='cuda')"


@contextmanager
def shared_gpu() -> Iterator[bool]:
    """Inside, new processes use the GPU at the same time; whether they do.

    Without the service, or where it does not work, they take turns of some milliseconds each: one whose kernels are
    small leaves most of its turn unused. A service that somebody else has started is used as it is.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield "CUDA_MPS_PIPE_DIRECTORY" in os.environ
        return
    folder = Path(tempfile.mkdtemp(prefix="pstn-mps-"))
    settings = {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(SHARE),
    }
    for path in ("pipe", "log"):
        (folder / path).mkdir()
    inside = {**os.environ, **settings}
    try:
        works = _silent([control, "-d"], inside) and _silent([sys.executable, "-c", TRIED], inside)
        if works:
            os.environ.update(settings)
        else:
            warnings.warn("NVIDIA's Multi-Process Service does not work here: jobs take turns", stacklevel=3)
        yield works
    finally:
        for name in settings:
            os.environ.pop(name, None)
        _silent([control], inside, "quit\n")
        shutil.rmtree(folder, ignore_errors=True)


def _silent(command: list[str], environment: dict[str, str], text: str = "") -> bool:
    try:
        done = subprocess.run(command, env=environment, input=text, text=True, capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
