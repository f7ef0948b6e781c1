"""Arrays and npz files: layouts, labels, and files that are damaged or unsafe."""

import numpy as np
import pytest
import torch

from pstn.data import from_arrays, read_npz

Y = np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("NL", (4, 7)),
        ("NCL", (4, 2, 7)),
        ("NLC", (4, 7, 2)),
        ("NHW", (4, 5, 6)),
        ("NCHW", (4, 3, 5, 6)),
        ("NHWC", (4, 5, 6, 3)),
        ("NDHW", (4, 7, 5, 6)),
        ("NCDHW", (4, 2, 7, 5, 6)),
        ("NDHWC", (4, 7, 5, 6, 2)),
    ],
)
def test_layouts(layout, shape):
    x = np.random.default_rng(0).normal(size=shape)
    data = from_arrays(x, Y, layout=layout)
    channels = shape[layout.index("C")] if "C" in layout else 1
    assert data.x.dtype == torch.float32
    assert data.x.shape == (4, channels, *(n for n, axis in zip(shape[1:], layout[1:], strict=True) if axis != "C"))
    for channel in range(channels):
        expected = np.take(x, channel, layout.index("C")) if "C" in layout else x
        assert torch.equal(data.x[:, channel], torch.from_numpy(expected).float())


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (np.zeros((4, 7)), (1, 7)),
        (np.zeros((4, 5, 6), np.uint8), (1, 5, 6)),
        (np.zeros((4, 5, 6, 3)), (3, 5, 6)),
        (np.zeros((4, 3, 5, 6)), (3, 5, 6)),
    ],
)
def test_layouts_that_are_plain_are_guessed(x, shape):
    assert from_arrays(x, Y).x.shape[1:] == shape


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 3, 5, 3), (4, 8, 8, 8), (4, 2, 3, 4, 5)])
def test_layouts_that_are_not_plain_must_be_given(shape):
    with pytest.raises(ValueError, match="say what its axes are, layout= one of 'N"):
        from_arrays(np.zeros(shape), Y)


def test_missing_values_of_series_are_filled_where_one_asks_for_it():
    x = np.arange(48.0).reshape(4, 2, 6)
    gaps = x.copy()
    gaps[0, 1, 2:4] = np.nan
    gaps[1, :, 4:] = np.nan
    found = from_arrays(gaps, Y, layout="NCL", missing="interpolate").x
    assert torch.equal(found[[0, 2, 3]], torch.from_numpy(x[[0, 2, 3]]).float()), "between its neighbours, where it was"
    assert found[1, 0, [0, -1]].tolist() == [12, 15], "four points, stretched"
    with pytest.raises(ValueError, match="NaN or infinite"):
        from_arrays(gaps, Y, layout="NCL")
    gaps[2, 1] = np.nan
    with pytest.raises(ValueError, match="has no values"):
        from_arrays(gaps, Y, layout="NCL", missing="interpolate")
    with pytest.raises(ValueError, match="NaN or infinite"):
        from_arrays(gaps, Y, layout="NHW", missing="interpolate")


def test_only_bytes_of_images_are_scaled():
    values = np.array([[[0, 51, 255]]] * 4)
    assert torch.allclose(from_arrays(values.astype(np.uint8), Y).x[0, 0, 0], torch.tensor([0, 0.2, 1]))
    assert from_arrays(values, Y, layout="NHW").x[0, 0, 0].tolist() == [0, 51, 255]
    assert from_arrays(values > 50, Y, layout="NHW").x[0, 0, 0].tolist() == [0, 1, 1]
    assert from_arrays(values[:, 0].astype(np.uint8), Y).x[0, 0].tolist() == [0, 51, 255], "series as other files say"


@pytest.mark.parametrize(
    ("y", "numbers", "classes"),
    [
        (np.array([3, -1, 10, 3], np.int8), [1, 0, 2, 1], ("-1", "3", "10")),
        (np.array([3.0, -1.0, 10.0, 3.0]), [1, 0, 2, 1], ("-1", "3", "10")),
        (np.array(["b", "a", "b", "b"]), [1, 0, 1, 1], ("a", "b")),
        (np.array([b"b", b"a", b"b", b"b"]), [1, 0, 1, 1], ("a", "b")),
        (np.array(["b", "a", "b", "b"], dtype=object), [1, 0, 1, 1], ("a", "b")),
        (np.array([True, False, True, True]), [1, 0, 1, 1], ("False", "True")),
    ],
)
def test_labels(y, numbers, classes):
    data = from_arrays(np.zeros((4, 7)), y)
    assert (data.y.tolist(), data.classes) == (numbers, classes)


def test_labels_with_given_classes():
    assert from_arrays(np.zeros((4, 7)), Y, classes=("x", "y", "z")).y.tolist() == Y.tolist()
    words = np.array(["z", "x", "x", "z"])
    assert from_arrays(np.zeros((4, 7)), words, classes=("x", "y", "z")).y.tolist() == [2, 0, 0, 2]


@pytest.mark.parametrize(
    ("x", "y", "options", "error", "match"),
    [
        (np.zeros((4, 7)), np.array([0.5, 1, 1, 0]), {}, ValueError, "not all whole numbers"),
        (np.zeros((4, 7)), np.array([np.nan, 1, 1, 0]), {}, ValueError, "not all whole numbers"),
        (np.zeros((4, 7)), np.eye(4), {}, TypeError, "N whole numbers or words"),
        (np.zeros((4, 7)), Y.astype(object), {}, TypeError, "N whole numbers or words"),
        (np.zeros((4, 7)), Y[:3], {}, ValueError, "4 examples need"),
        (np.zeros((4, 7)), Y + 1, {"classes": ("a", "b")}, ValueError, "labels from 1 to 2"),
        (np.zeros((4, 7)).astype(object), Y, {}, TypeError, "expected numbers"),
        (np.zeros(4), Y, {}, ValueError, r"x has shape \(4,\)"),
        (np.zeros((4, 7)), Y, {"layout": "NHWC"}, ValueError, "which has 4 axes"),
        (np.zeros((4, 7)), Y, {"layout": "LN"}, ValueError, "layout is 'LN'; expected one of 'NL'"),
        (np.full((4, 7), np.nan), Y, {}, ValueError, "28 values that are NaN"),
    ],
)
def test_bad_arrays(x, y, options, error, match):
    with pytest.raises(error, match=match):
        from_arrays(x, y, **options)


def test_npz_without_splits(tmp_path):
    np.savez(tmp_path / "pets.npz", x=np.zeros((4, 5, 5), np.uint8), y=np.array(["dog", "cat", "dog", "cat"]))
    data = read_npz(tmp_path / "pets.npz")
    assert (data.name, data.classes, data.x.shape) == ("pets", ("cat", "dog"), (4, 1, 5, 5))


def test_npz_splits_share_their_classes(tmp_path):
    x = np.zeros((4, 6))
    np.savez_compressed(tmp_path / "a.npz", x_train=x, y_train=Y, x_test=x[:2], y_test=np.array([9, 1]), extra=x)
    train, test = read_npz(tmp_path / "a.npz", "train"), read_npz(tmp_path / "a.npz", "test")
    assert train.classes == test.classes == ("0", "1", "9")
    assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 1, 0], [2, 1])
    assert test.name == "a test"


def test_npz_with_names_of_classes(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 6)), y=Y, classes=np.array(["zebra", "ant", "bee"]))
    data = read_npz(tmp_path / "a.npz")
    assert (data.y.tolist(), data.classes) == ([0, 1, 1, 0], ("zebra", "ant", "bee"))


def test_bad_npz(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_npz(path)
    path.write_bytes(b"not a zip file")
    with pytest.raises(ValueError, match="not an npz file"):
        read_npz(path)
    np.savez(path, x=np.zeros((400, 6)), y=np.zeros(400, int))
    with pytest.raises(ValueError, match="has x, y; expected x_train and y_train"):
        read_npz(path, "train")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="truncated, damaged"):
        read_npz(path)
    path.write_bytes(whole[:500] + b"\xff" * 300 + whole[800:])
    with pytest.raises(ValueError, match="cannot be read"):
        read_npz(path)


class Trap:
    """Would leave a mark if it were ever unpickled."""

    sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "sprung", True))


def test_npz_is_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 6)), y=np.array([Trap()], dtype=object))
    with pytest.raises(ValueError, match=r"cannot be read.*expected plain arrays"):
        read_npz(tmp_path / "a.npz")
    assert not Trap.sprung
