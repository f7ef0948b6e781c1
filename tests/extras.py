"""Each extra on its own: a fresh environment with the wheel and one extra does what that extra is for.

``make extras`` runs this file; ``python tests/extras.py onnx hub`` tries two of them. Every extra has a function below,
which runs in an environment of its own, in an empty folder, with nothing else installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def alone():
    """No extra: the core, a model of arrays, and the command line."""
    import numpy as np
    import torch

    from pstn import STN, Similarity, StudentT, elbo, nets, predict
    from pstn.metrics import summary

    assert abs(summary(torch.eye(3).clamp(0.1, 0.8), torch.arange(3))["ece"] - 0.2) < 1e-5
    model = STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), Similarity(), StudentT())
    elbo(model(torch.rand(4, 1, 28, 28)), torch.arange(4)).backward()
    assert predict(model, torch.rand(4, 1, 28, 28)).probs.shape == (4, 10)
    x = np.random.default_rng(0).random((20, 16, 16), dtype=np.float32)
    x[::2] *= 0.2
    np.savez("data.npz", x=x, y=np.arange(20) % 2)
    pstn("fit", "data.npz", "--layout", "NHW", "--time", "2s")
    pstn("predict", "models/data", "data.npz", "--jsonl")
    pstn("doctor", "models/data", status=(0, 1))
    said = pstn("report", "models/data", "data.npz", status=(1,))
    assert "pip install 'pstn[plot]'" in said, said


def plot():
    from pstn.report.figures import training_curves

    training_curves({"NLL": {"": ([1, 2], [[0.5, 0.4]])}}).savefig("curve.png")
    assert Path("curve.png").stat().st_size > 1000


def images():
    pictures()
    pstn("fit", "pictures", "--time", "2s")
    pstn("predict", "models/pictures", "pictures")


def svhn():
    import h5py
    import numpy as np

    with h5py.File("digitStruct.mat", "w") as file:
        file["x"] = np.arange(3)
    with h5py.File("digitStruct.mat") as file:
        assert file["x"][2] == 2
    import pstn.data.svhn  # noqa: F401


def sklearn():
    import numpy as np

    from pstn.estimators import PSTNClassifier, PSTNTimeSeriesClassifier

    x, y = np.random.default_rng(0).random((12, 16, 16)), np.arange(12) % 2
    assert PSTNClassifier(max_steps=3).fit(x, y).predict_proba(x).shape == (12, 2)
    assert PSTNTimeSeriesClassifier(max_steps=3).fit(x, y).transform(x).shape == (12, 16, 16)


def aeon():
    import numpy as np

    from pstn.estimators.aeon import AeonPSTNClassifier

    x, y = np.random.default_rng(0).random((12, 1, 20)), np.arange(12) % 2
    assert AeonPSTNClassifier(max_steps=3).fit(x, y).predict(x).shape == (12,)
    # aeon's own checks; its bounds on numba and pandas keep it out of the tests' environment
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "pytest"], check=True, stderr=subprocess.DEVNULL)
    from aeon.testing.estimator_checking import check_estimator

    results = check_estimator(AeonPSTNClassifier)
    assert len(results) > 20
    assert set(results.values()) == {"PASSED"}, results


def apply():
    pictures()
    pstn("fit", "pictures", "--time", "2s")
    pstn("predict", "models/pictures", "pictures", "--picture", "where.png")
    pstn("report", "models/pictures", "pictures")
    pstn("doctor", "models/pictures", status=(0, 1))
    assert Path("where.png").stat().st_size > 1000
    assert Path("models/pictures/report.html").stat().st_size > 10000


def hub():
    import torch

    from pstn.apply import ModelError, Trained, from_pretrained
    from pstn.data import Normalise
    from pstn.recipe import network

    folder = Trained(network((1, 28, 28), 2), ("cat", "dog"), (1, 28, 28), Normalise(0.5, 0.25)).save("model")
    assert from_pretrained(folder).predict(torch.rand(1, 1, 28, 28)).probs.shape == (1, 2)
    said = ""
    try:
        from_pretrained("nobody/nothing", local_files_only=True)
    except ModelError as error:
        said = str(error)
    assert "cannot be had from the hub" in said, said


def serve():
    import urllib.request

    pictures()
    pstn("fit", "pictures", "--time", "2s")
    with subprocess.Popen(command("serve", "models/pictures", "--port", "0"), stdout=subprocess.PIPE, text=True) as run:
        address = run.stdout.readline().split()[0]
        question = urllib.request.Request(f"{address}look", Path("pictures/lying/0.png").read_bytes(), method="POST")
        with urllib.request.urlopen(question, timeout=60) as reply:
            assert b'"draws"' in reply.read()
        run.terminate()


def docs():
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", ROOT / "docs", "site"], check=True)
    assert Path("site/index.html").exists()


def demo():
    pstn("demo", "--quick")
    assert Path("report/index.html").exists()


def numba():
    import torch

    from pstn import CPAB
    from pstn.families.cpab import flow

    assert flow.use_numba
    points = torch.rand(50, 2) * 2 - 1
    theta = 0.2 * torch.randn(3, CPAB((3, 3)).dim)
    quick = CPAB((3, 3))(theta, points)
    flow.use_numba = False
    torch.testing.assert_close(quick, CPAB((3, 3))(theta, points), atol=1e-4, rtol=0)


def ray():
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    assert ray.get(ray.remote(lambda: 7).remote()) == 7
    import pstn.experiment.cluster  # noqa: F401


def onnx():
    import numpy as np
    import onnxruntime
    import torch

    from pstn import STN, Similarity, StudentT, export, nets

    model = STN(nets.classifier((1, 28, 28), 10), nets.localizer((1, 28, 28)), Similarity(), StudentT())
    export(model, "onnx", "model.onnx", torch.rand(2, 1, 28, 28), samples=4)
    session = onnxruntime.InferenceSession("model.onnx")
    assert session.run(None, {"x": np.zeros((5, 1, 28, 28), np.float32)})[0].shape == (5, 10)


def test():
    files = ("test_warp.py", "test_serve.py", "test_export.py", "apply/test_docs.py", "estimators/test_estimators.py")
    here = [str(ROOT / "tests" / file) for file in files]
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *here], check=True)


def dev():
    typed = str(ROOT / "pstn" / "grid.py")
    settings = ["--cache-dir", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    for tool in (["ruff", "check", "--no-cache"], ["mypy", *settings]):
        subprocess.run([sys.executable, "-m", *tool, typed], check=True)
    subprocess.run([sys.executable, "-m", "pre_commit", "--version"], check=True)


def pictures():
    """Folders of small pictures, two classes."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0)
    for name in ("standing", "lying"):
        Path("pictures", name).mkdir(parents=True)
        for i in range(10):
            picture = noise.integers(0, 60, (16, 16), np.uint8)
            picture[(slice(3, 13), slice(7, 9)) if name == "standing" else (slice(7, 9), slice(3, 13))] = 255
            Image.fromarray(picture).save(f"pictures/{name}/{i}.png")


def command(*args):
    return [sys.executable, "-u", "-m", "pstn", *args]


def pstn(*args, status=(0,)):
    """What a command of the library says; its exit status must be one of those given."""
    done = subprocess.run(command(*args), capture_output=True, text=True)
    assert done.returncode in status, f"pstn {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def names():
    """The extras of the library, and none at all first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return ["alone", *project["optional-dependencies"]]


def build(folder):
    """The library's wheel, built from a copy of what it is built from: nothing that lies about gets in, or is left."""
    source = folder / "source"
    shutil.copytree(ROOT / "pstn", source / "pstn", ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, source], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def attempt(name, wheel, folder):
    """Install one extra into an environment of its own, and do what it is for."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    # torch first and by itself, as in the Makefile
    subprocess.run([*install, "torch"], check=True, stderr=subprocess.DEVNULL)
    extra = "" if name == "alone" else f"[{name}]"
    subprocess.run([*install, f"pstn{extra} @ {wheel.as_uri()}"], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([python, "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)
    (folder / "work").mkdir()
    home = {"HOME": str(folder), "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PSTN_DATA")} | home
    # -P: this file's folder is no place to import from
    return subprocess.run([python, "-P", __file__, "--use", name], cwd=folder / "work", env=environment).returncode


def main(chosen):
    """Try extras, all by default; the exit status says whether all of them work."""
    unknown = set(chosen) - set(names())
    if unknown:
        sys.exit(f"there is no extra {', '.join(sorted(unknown))}; expected some of {', '.join(names())}")
    failed = []
    with tempfile.TemporaryDirectory() as place:
        wheel = build(Path(place))
        for name in chosen or names():
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                status = attempt(name, wheel, Path(folder))
            failed += [name] if status else []
            print(f"{name}: {'FAILED' if status else 'works'} ({time.monotonic() - start:.0f} s)", flush=True)
    sys.exit(f"these extras do not work: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--use"]:
        globals()[sys.argv[2]]()
    else:
        main(sys.argv[1:])
