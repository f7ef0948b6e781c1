"""SVHN, format 1: small files in the publisher's format, read through h5py or what behaves like it."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from pstn import STN
from pstn.data import Numbers, read_right, svhn, svhn_normalised, svhn_photographs
from pstn.data.svhn import find_svhn, labels, read_struct
from pstn.nets import Heads
from pstn.train import Member, Train, fit_fleet

#: Of each photograph: its digits as the file has them (10 is a zero), with left, top, width and height.
PHOTOGRAPHS = {
    "1.png": [(1, 20, 10, 8, 20), (10, 30, 12, 8, 20)],
    "2.png": [(5, 3, 2, 10, 20)],
    "3.png": [(7, 40, 10, 6, 12), (2, 10, 10, 6, 12), (3, 25, 10, 6, 12)],  # not from left to right
    "4.png": [(n, 5 * n, 10, 5, 9) for n in range(1, 7)],  # six digits
}
#: The module; in the package, its name is the function's.
MODULE = sys.modules["pstn.data.svhn"]
FIELDS = ("label", "left", "top", "width", "height")


class Reference:
    """An object reference as h5py has it, by number."""

    def __init__(self, name):
        self.name = name


class File(dict):
    """As much of an h5py file as is used: names, and references to things without one."""

    def __getitem__(self, key):
        return super().__getitem__(key.name if isinstance(key, Reference) else key)


def struct(photographs):
    """A ``digitStruct`` as MATLAB writes it: columns of references; numbers of one digit are numbers themselves."""
    file, names, boxes = File(), [], []

    def refer(value):
        file[f"#{len(file)}"] = value
        return Reference(f"#{len(file) - 1}")

    for name, digits in photographs.items():
        names.append([refer(np.array([[ord(c)] for c in name], dtype=np.uint16))])
        columns = {}
        for n, field in enumerate(FIELDS):
            values = [np.array([[float(digit[n])]]) for digit in digits]
            several = np.array([[refer(v)] for v in values], dtype=object) if len(values) > 1 else values[0]
            columns[field] = several
        boxes.append([refer(columns)])
    file["digitStruct"] = {"name": np.array(names, dtype=object), "bbox": np.array(boxes, dtype=object)}
    return file


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Grey photographs whose digits are white, and a module in place of h5py that opens the made structure."""
    for split in ("train", "test"):
        folder = tmp_path / "SVHN" / split
        folder.mkdir(parents=True)
        for name, digits in PHOTOGRAPHS.items():
            pixels = np.full((40, 60, 3), 64, np.uint8)
            for _, left, top, width, height in digits:
                pixels[top : top + height, left : left + width] = 255
            Image.fromarray(pixels).save(folder / name)
        (folder / "digitStruct.mat").write_bytes(b"made")
    return tmp_path


@pytest.fixture
def stand_in(monkeypatch):
    """What behaves like h5py: opens the structure above whatever the file."""

    class Opened(File):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    class H5py:
        @staticmethod
        def File(path, mode):
            assert mode == "r"
            if path.read_bytes() != b"made":
                raise OSError("file signature not found")
            return Opened(struct(PHOTOGRAPHS))

    monkeypatch.setattr(MODULE, "import_module", {"h5py": H5py}.__getitem__)


def test_the_structure_is_read():
    found = read_struct(struct(PHOTOGRAPHS))
    assert [p.file for p in found] == list(PHOTOGRAPHS)
    assert [p.digits for p in found] == [(1, 0), (5,), (2, 3, 7), (1, 2, 3, 4, 5, 6)]
    assert found[0].boxes == ((20.0, 10.0, 8.0, 20.0), (30.0, 12.0, 8.0, 20.0))


def test_the_window_is_the_box_around_all_digits_widened():
    first = read_struct(struct(PHOTOGRAPHS))[0]
    # 20 to 38 and 10 to 32: 18 and 22 pixels, 15 % to each side
    assert first.window() == pytest.approx((20 - 2.7, 10 - 3.3, 38 + 2.7, 32 + 3.3))
    assert first.window(0.0) == (20, 10, 38, 32)


def test_numbers_are_cut_out(root, stand_in):
    data = svhn("train", root, size=32)
    assert isinstance(data, Numbers)
    assert data.x.shape == (3, 3, 32, 32), "six digits are left out"
    assert data.y.tolist() == [[1, 0, 10, 10, 10], [5, 10, 10, 10, 10], [2, 3, 7, 10, 10]]
    assert data.classes == (*"0123456789", "none")
    assert data.x[1].max() == 1
    # of the second, a digit at the edge: the window ends with the photograph, 3 - 1.5 to 14.5 and 0 to 25
    share = (data.x[1, 0] > 0.5).float().mean().item()
    assert share == pytest.approx(10 * 20 / (13 * 25), abs=0.06)
    assert len(svhn("test", root, size=8, count=2)) == 2


def test_a_real_file_is_read(root):
    h5py = pytest.importorskip("h5py", reason="h5py writes the file; its reader is tested on a stand-in above")
    path = root / "SVHN" / "train" / "digitStruct.mat"
    with h5py.File(path, "w") as file:
        refs, kind = file.create_group("#refs#"), h5py.special_dtype(ref=h5py.Reference)
        count = iter(range(10_000))

        def refer(value):
            name = str(next(count))
            if isinstance(value, dict):
                group = refs.create_group(name)
                for key, entry in value.items():
                    references = entry.dtype == object
                    made = group.create_dataset(key, entry.shape, dtype=kind if references else entry.dtype)
                    made[...] = entry
                return group.ref
            return refs.create_dataset(name, data=value).ref

        top = file.create_group("digitStruct")
        names, boxes = (top.create_dataset(n, (len(PHOTOGRAPHS), 1), dtype=kind) for n in ("name", "bbox"))
        for i, (name, digits) in enumerate(PHOTOGRAPHS.items()):
            names[i, 0] = refer(np.array([[ord(c)] for c in name], dtype=np.uint16))
            columns = {}
            for n, field in enumerate(FIELDS):
                values = [np.array([[float(digit[n])]]) for digit in digits]
                several = np.empty((len(values), 1), dtype=object)
                several[:, 0] = [refer(v) for v in values] if len(values) > 1 else 0
                columns[field] = several if len(values) > 1 else values[0]
            boxes[i, 0] = refer(columns)
    assert svhn_photographs("train", root) == read_struct(struct(PHOTOGRAPHS))
    assert svhn("train", root, size=16).y.tolist() == [[1, 0, 10, 10, 10], [5, 10, 10, 10, 10], [2, 3, 7, 10, 10]]


def test_five_labels_an_image_go_through_subsets_splits_and_training():
    y = labels([(1, 2), (3,), (4, 5, 6)] * 8)
    data = Numbers(torch.rand(24, 3, 8, 8), y, (*"0123456789", "none"), "numbers")
    train, test = data.split((18, 6), seed=1)
    for part, count in ((train, 6), (test, 2)):
        assert torch.bincount((part.y != 10).sum(1), minlength=4)[1:].tolist() == [count] * 3
    assert torch.equal(data.subset([2, 0]).y, y[[2, 0]])
    assert data.counts[10] == int((y == 10).sum())
    (normal,) = svhn_normalised(data)
    torch.testing.assert_close(normal.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    with pytest.raises(TypeError, match="no balanced subset"):
        data.balanced_subset(1)

    def network(seed):
        torch.manual_seed(seed)
        return STN(nn.Sequential(nn.Flatten(), Heads(192, 5, 11)))

    config = Train(steps=60, batch_size=6, lr=1e-2, accelerator="cpu")
    runs = fit_fleet([Member(network(s), train, test, config=config) for s in (1, 2)], progress=False)
    for run in runs:
        assert run.history[-1]["loss"] < run.history[0]["loss"] - 1
    probs = runs[0].model(train.x).logits[0].softmax(-1)
    assert read_right(probs, train.y) == float((probs.argmax(-1) == train.y).all(1).float().mean())


def test_without_h5py_the_error_says_so(root, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(MODULE, "import_module", missing)
    with pytest.raises(ImportError, match="needs h5py: pip install h5py"):
        svhn_photographs("train", root)


def test_what_is_missing_or_damaged_is_named(root, stand_in, tmp_path):
    assert find_svhn("extra", root) is None
    with pytest.raises(FileNotFoundError, match=r"SVHN extra is not at hand.*digitStruct.mat.*ufldl"):
        svhn("extra", root)
    (root / "SVHN" / "test" / "2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"2.png does not exist; digitStruct.mat names it"):
        svhn("test", root)
    (root / "SVHN" / "test" / "2.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="cannot be read as an image"):
        svhn("test", root)
    Image.new("RGB", (2, 2)).save(root / "SVHN" / "test" / "1.png")
    with pytest.raises(ValueError, match="is 2×2; its number is outside"):
        svhn("test", root)
    (root / "SVHN" / "test" / "digitStruct.mat").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is not an HDF5 file"):
        svhn("test", root)
    with pytest.raises(ValueError, match="is not a digitStruct of SVHN"):
        read_struct({"something": 1})
    with pytest.raises(ValueError, match="split is 'val'"):
        svhn("val", root)


def test_labels_that_do_not_fit_are_refused():
    x, classes = torch.rand(2, 3, 4, 4), (*"0123456789", "none")
    with pytest.raises(ValueError, match="labels from 2 to 11"):
        Numbers(x, torch.tensor([[0, 11], [1, 2]]), classes)
    with pytest.raises(ValueError, match=r"2 numbers need \(2, places\)"):
        Numbers(x, torch.tensor([0, 1]), classes)
