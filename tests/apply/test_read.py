"""Data as people have it: what is understood of it, and what is said of it when it cannot be used."""

import numpy as np
import pytest
import torch
from homemade import bars, series_csv
from PIL import Image

from pstn.apply import tables
from pstn.apply.read import only, read, read_again, read_inputs
from pstn.data import Data
from pstn.grid import resized


def test_folders(tmp_path):
    source = read(bars(tmp_path / "bars"))
    assert source.data.classes == ("lying", "standing")
    assert source.data.x.shape == (16, 1, 16, 16)
    assert source.how == {"kind": "images", "colour": False}
    assert read(bars(tmp_path / "coloured", colour=True)).data.x.shape[1] == 3


def test_large_and_differing_pictures_become_small_and_alike(tmp_path):
    bars(tmp_path)
    Image.new("L", (400, 200)).save(tmp_path / "lying" / "wide.png")
    source = read(tmp_path)
    assert source.data.x.shape[2:] == (16, 16), "the median size"
    assert any("Sizes differ, from 16×16 to 200×400" in words for words in source.remarks)
    assert read(tmp_path, size=12).data.x.shape[2:] == (12, 12)


def test_strips_keep_their_short_side(tmp_path):
    assert read(bars(tmp_path / "a", size=(16, 600))).data.x.shape[2:] == (16, 64)
    assert read(bars(tmp_path / "b", size=(600, 40))).data.x.shape[2:] == (64, 16)
    assert read(bars(tmp_path / "c", size=(200, 300))).data.x.shape[2:] == (44, 64)


def test_parts_that_somebody_made(tmp_path):
    bars(tmp_path / "train")
    bars(tmp_path / "val", per_class=3)
    source = read(tmp_path)
    assert (len(source.data), len(source.validation)) == (16, 6)
    how, shape = source.how, source.data.x.shape[1:]
    assert len(read_again(tmp_path, how, shape, source.data.classes)) == 6
    bars(tmp_path / "test", per_class=2)
    assert len(read_again(tmp_path, how, shape, source.data.classes)) == 4, "test before validation"


def test_photographs_that_a_camera_turned_keep_their_shape(tmp_path):
    bars(tmp_path, size=(16, 20))
    for file in tmp_path.rglob("*.png"):
        with Image.open(file) as image:
            exif = image.getexif()
            exif[0x0112] = 6  # held on its side
            image.save(file.with_suffix(".jpg"), exif=exif)
        file.unlink()
    source = read(tmp_path)
    assert source.data.x.shape[2:] == (20, 16)
    assert not any("Resized" in words for words in source.remarks)


def test_some_classes_in_an_order(tmp_path):
    data = Data(torch.arange(6.0).view(6, 1, 1, 1), torch.tensor([0, 1, 2, 0, 1, 2]), ("a", "b", "c"))
    kept = only(data, ("c", "a"))
    assert kept.classes == ("c", "a")
    assert [kept.classes[i] for i in kept.y] == ["a", "c", "a", "c"]
    assert kept.x.flatten().tolist() == [0, 2, 3, 5]
    with pytest.raises(ValueError, match="expected some of"):
        only(data, ("x", "y"))
    with pytest.raises(ValueError, match="has the classes lying, standing; not stading"):
        read(bars(tmp_path), classes=("lying", "standing", "stading"))


def test_npz(tmp_path):
    x = np.random.default_rng(0).random((10, 12, 12, 3))
    np.savez(tmp_path / "a.npz", x_train=x, y_train=np.arange(10) % 2, x_val=x[:4], y_val=np.arange(4) % 2)
    source = read(tmp_path / "a.npz", size=8)
    assert source.data.x.shape == (10, 3, 8, 8)
    assert len(source.validation) == 4
    again = read_again(tmp_path / "a.npz", source.how, (3, 8, 8), source.data.classes)
    assert torch.equal(again.x, source.validation.x), "measured on what was not trained on"


@pytest.mark.parametrize("size", [None, 40])
def test_long_series_are_the_same_whatever_file_they_come_in(tmp_path, size):
    x, y = np.random.default_rng(0).normal(size=(6, 1000)), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savetxt(tmp_path / "a.csv", np.column_stack([y, x]), delimiter=",")
    found = [read(tmp_path / name, size=size) for name in ("a.npz", "a.csv")]
    assert found[0].data.x.shape == (6, 1, size or 256)
    for other in (found[1], found[0]):
        assert torch.allclose(other.data.x, resized(torch.from_numpy(x[:, None]), (size or 256,)), atol=1e-5)
        assert any(f"Resampled to {size or 256} points" in words for words in other.remarks)
    for name in ("a.npz", "a.csv"):
        again = read_again(tmp_path / name, found[1].how, (1, size or 256), found[1].data.classes)
        assert torch.allclose(again.x, found[0].data.x, atol=1e-5)


def test_three_axes_are_grey_images_to_a_model_of_them(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (10, 12, 16), dtype=np.uint8), np.arange(10) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y)
    source = read(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=x / 255, y=y)  # of these alone, the order of the axes could not be told
    arguments = (tmp_path / "b.npz", source.how, (1, 12, 16), source.data.classes)
    assert torch.allclose(torch.stack([one for _, one in read_inputs(*arguments)]), source.data.x)
    assert torch.allclose(read_again(*arguments).x, source.data.x)


def test_pictures_are_not_mixed_with_arrays_on_another_scale(tmp_path):
    """A file of 0 to 1 is black to a network that has learned from 0 to 255."""
    x = np.random.default_rng(0).integers(0, 256, (10, 16, 16, 1))
    folder = bars(tmp_path / "bars")
    for scale, dtype in ((1, np.float64), (1, np.int64), (1 / 255, np.float64), (1, np.uint8)):
        np.savez(tmp_path / "a.npz", x=(x * scale).astype(dtype), y=np.arange(10) % 2)
        source = read(tmp_path / "a.npz")
        arguments = (folder, source.how, (1, 16, 16), ("lying", "standing"))
        if scale == 1 and dtype != np.uint8:
            with pytest.raises(ValueError, match="from 0 to 1, and the model was trained on values from 0 to 255"):
                read_again(*arguments)
            with pytest.raises(ValueError, match="0 to 255: give it npz files"):
                list(read_inputs(*arguments))
        else:
            assert len(list(read_inputs(*arguments))) == len(read_again(*arguments)) == 16


@pytest.mark.parametrize("header", [True, False])
def test_csv_with_the_label_last(tmp_path, header):
    file = series_csv(tmp_path / "a.csv", header=header)
    source = read(file)
    assert source.data.classes == ("bell", "cylinder", "funnel")
    assert source.data.x.shape == (24, 1, 40)
    assert source.how["label"] == ("class" if header else "40")
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(line.rpartition(",")[0] for line in file.read_text().splitlines()))
    for one in (file, bare):
        inputs = list(read_inputs(one, source.how, (1, 40), source.data.classes))
        assert len(inputs) == 24
        assert torch.equal(torch.stack([x for _, x in inputs]), source.data.x), one


@pytest.mark.parametrize("name", ["site 3.2026.csv", "site 3.2026.csv.gz", "site 3.2026.npz"])
def test_points_in_names_are_no_endings(tmp_path, name):
    """The model's folder is called so: those of 2025 and 2026 are two."""
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4) % 2
    if name.endswith("npz"):
        np.savez(tmp_path / name, x=x, y=y)
    else:
        np.savetxt(tmp_path / name, np.column_stack([y, x]), delimiter=",")
    assert read(tmp_path / name).data.name == "site 3.2026"


def test_csv_of_numbers_has_its_label_first(tmp_path):
    (tmp_path / "a.tsv").write_text("1\t0.5\t0.25\t4\n2\t1\t2\t3\n1\t0\t1\t\n2\t5\t6\t7\n")
    source = read(tmp_path / "a.tsv", size=6)
    assert source.data.classes == ("1", "2")
    assert source.data.x.shape == (4, 1, 6)
    assert any("Lengths differ, from 2 to 3" in words for words in source.remarks)
    assert tables.read_sheet(tmp_path / "a.tsv").column("2") == 2


def sheet(path, header, rows, mark=","):
    lines = [mark.join(header)] if header else []
    path.write_text("\n".join([*lines, *(mark.join(map(str, row)) for row in rows)]) + "\n")
    return path


VALUES = np.random.default_rng(0).random((12, 5)).round(3)
KINDS = [f"{i % 2}" for i in range(12)]
SHEETS = {  # header, cells, mark, where the labels are
    "numbered lines": (["id", *"abcde", "kind"], lambda i: [i, *VALUES[i], f"k{KINDS[i]}"], ",", "kind"),
    "as pandas writes": (["", *"01234", "label"], lambda i: [i, *VALUES[i], KINDS[i]], ",", "label"),
    "dated lines": (["Timestamp", *"abcde", "class"], lambda i: [1.7e9 + i, *VALUES[i], KINDS[i]], ",", "class"),
    "dates in words": (["date", "kind", *"abcde"], lambda i: [f"2026-01-{i}", KINDS[i], *VALUES[i]], ",", "kind"),
    "numbered columns": ([*"012345"], lambda i: [KINDS[i], *VALUES[i]], ",", "0"),
    "numbered both ways": (["", *"012345"], lambda i: [i, *VALUES[i], KINDS[i]], ",", "5"),
    "numbered columns, a name": ([*"01234", "kind"], lambda i: [*VALUES[i], f"k{KINDS[i]}"], ",", "kind"),
    "numbers, labels last": (None, lambda i: [*VALUES[i], KINDS[i]], ",", "5"),
    "comma as point": (None, lambda i: [*(str(v).replace(".", ",") for v in VALUES[i]), f"k{KINDS[i]}"], ";", "5"),
    "comma, tabs": (None, lambda i: [f"k{KINDS[i]}", *(str(v).replace(".", ",") for v in VALUES[i])], "\t", "0"),
}

LEFT_OUT = ("", "id", "Timestamp", "date")


@pytest.mark.parametrize("case", SHEETS.values(), ids=SHEETS)
def test_sheets_as_programs_write_them(tmp_path, case):
    header, cells, mark, where = case
    file = sheet(tmp_path / "a.csv", header, [cells(i) for i in range(12)], mark)
    source = read(file)
    assert source.how["label"] == where
    assert np.allclose(source.data.x[:, 0], VALUES, atol=1e-6), "the series, and neither labels nor numbers of lines"
    assert [source.data.classes[i].removeprefix("k") for i in source.data.y] == KINDS
    assert any("left out" in words for words in source.remarks) == (header is not None and header[0] in LEFT_OUT)
    inputs = [x for _, x in read_inputs(file, source.how, (1, 5), source.data.classes)]
    assert torch.equal(torch.stack(inputs), source.data.x)
    few = sheet(tmp_path / "few.csv", header, [cells(i) for i in range(3)], mark)
    assert len(read_again(few, source.how, (1, 5), source.data.classes)) == 3, "few lines are no reason to doubt"


@pytest.mark.parametrize("header", [None, "kind", "class", "Label"])
@pytest.mark.parametrize("trained", [None, "kind", "class"])
def test_labels_are_no_part_of_new_series_whatever_they_are_called(tmp_path, trained, header):
    def written(name, first, labels=True):
        rows = [[*([KINDS[i]] if labels else []), *VALUES[i]] for i in range(12)]
        return sheet(tmp_path / name, first and [*([first] if labels else []), *"pqrst"], rows)

    source = read(written("a.csv", trained), label=trained)
    for file in (written("b.csv", header), written("c.csv", header, labels=False)):
        inputs = [x for _, x in read_inputs(file, source.how, (1, 5), source.data.classes)]
        assert torch.equal(torch.stack(inputs), source.data.x), file


def test_remarks_above_a_table_are_none_of_its_lines(tmp_path):
    values = np.column_stack([VALUES, np.arange(12) % 2])
    np.savetxt(tmp_path / "a.csv", values, delimiter=",", header="logger 3, started on Monday\np,q,r,s,t,label")
    source = read(tmp_path / "a.csv")
    assert source.how["label"] == "label"
    assert np.allclose(source.data.x[:, 0], VALUES)
    inputs = [x for _, x in read_inputs(tmp_path / "a.csv", source.how, (1, 5), source.data.classes)]
    assert torch.equal(torch.stack(inputs), source.data.x)
    write(tmp_path / "b.csv", "# logger 3\n#\na,1,2\nb,x,3\n")
    with pytest.raises(ValueError, match="line 4 has 'x'"):
        read(tmp_path / "b.csv")
    assert read(write(tmp_path / "c.csv", "#1,1,2\n#1,3,4\n#2,1,2\n#2,5,6\n")).data.counts == (2, 2)
    assert read(write(tmp_path / "d.csv", "#1,1,2\n#1,3,4\n2,1,2\n2,5,6\n")).data.counts == (2, 2)


def test_none_is_a_class_among_labels_and_a_gap_among_numbers(tmp_path):
    source = read(write(tmp_path / "a.csv", "p,q,r,class\n1,2,3,none\n3,none,5,crack\n1,2,3,none\n3,4,5,crack\n"))
    assert source.data.classes == ("crack", "none")
    assert source.data.x[1, 0].tolist() == [3, 4, 5]


def test_lines_without_the_column_of_labels_are_whole_series(tmp_path):
    source = read(write(tmp_path / "a.csv", "p,q,class\n1,2,a\n3,4,b\n1,2,a\n3,4,b\n"))
    file = write(tmp_path / "new.csv", "p,q,class\n5,6,a\n7,8\n")
    found = [x.flatten().tolist() for _, x in read_inputs(file, source.how, (1, 2), source.data.classes)]
    assert found == [[5, 6], [7, 8]]


def test_grey_and_coloured_pictures_with_and_without_transparency(tmp_path):
    bars(tmp_path)
    for i, mode in enumerate(("RGBA", "LA", "P", "RGB", "1")):
        file = tmp_path / "lying" / f"{i}.png"
        with Image.open(file) as image:
            changed = image.convert(mode)
        changed.save(file)
    assert read(tmp_path).data.x.shape[1] == 1, "grey in every way of writing it"
    Image.new("RGBA", (16, 16), (255, 0, 0, 128)).save(tmp_path / "lying" / "0.png")
    assert read(tmp_path).data.x.shape[1] == 3


def test_folders_within_the_classes_folders(tmp_path):
    bars(tmp_path)
    (tmp_path / "lying" / "monday").mkdir()
    for i in range(3):
        (tmp_path / "lying" / f"{i}.png").rename(tmp_path / "lying" / "monday" / f"{i}.png")
    assert read(tmp_path).data.counts == (8, 8)


def test_what_is_hidden_or_beside_the_classes_is_no_image(tmp_path):
    source = read(bars(tmp_path / "bars"))
    for folder in ("bars", "bars/lying", "bars/lying/.ipynb_checkpoints"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "._0.png").write_text("what macOS leaves behind")
    (tmp_path / "bars" / "lying" / ".ipynb_checkpoints" / "0.png").write_text("no image")
    Image.new("RGB", (90, 70), "red").save(tmp_path / "bars" / "overview.png")
    (tmp_path / "bars" / "standing").rename(tmp_path / "elsewhere")
    (tmp_path / "bars" / "standing").symlink_to(tmp_path / "elsewhere")
    again = read(tmp_path / "bars")
    assert torch.equal(again.data.x, source.data.x)
    assert again.remarks == source.remarks
    names = [name for name, _ in read_inputs(tmp_path / "bars" / "lying", source.how, (1, 16, 16), ("a", "b"))]
    assert len(names) == 8


def test_series_with_gaps_are_the_same_whatever_file_they_come_in(tmp_path):
    x, y = np.random.default_rng(0).random((6, 8)), np.arange(6) % 2
    x[0, 2:4], x[1, 5:] = np.nan, np.nan
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savetxt(tmp_path / "a.csv", np.column_stack([y, x]), delimiter=",")
    array, sheet = (read(tmp_path / name) for name in ("a.npz", "a.csv"))
    assert torch.allclose(array.data.x, sheet.data.x)
    assert any("missing values are interpolated" in words for words in array.remarks)
    for name in ("a.npz", "a.csv"):
        arguments = (tmp_path / name, array.how, (1, 8), array.data.classes)
        assert torch.allclose(read_again(*arguments).x, array.data.x)
        assert torch.allclose(torch.stack([one for _, one in read_inputs(*arguments)]), array.data.x)


def test_ts(tmp_path):
    (tmp_path / "a.ts").write_text("@classLabel true no yes\n@data\n1,2,3:4,5,6:yes\n1,2:4,?,6:no\n")
    source = read(tmp_path / "a.ts")
    assert source.data.x.shape == (2, 2, 3)
    assert any("1 missing values" in words for words in source.remarks)


def test_ts_without_labels_is_predicted_too(tmp_path):
    tags = {"@classLabel false": "", "@targetLabel false": ":", "@classLabel true a b": ":?", "@targetLabel true": ":1"}
    for tag, label in tags.items():
        file = write(tmp_path / "new.ts", f"{tag}\n@data\n1,2,3:4,5,6{label}\n3,2,1:6,5,4{label}\n")
        found = [x.tolist() for _, x in read_inputs(file, {"kind": "series"}, (2, 3), ("no", "yes"))]
        assert found == [[[1, 2, 3], [4, 5, 6]], [[3, 2, 1], [6, 5, 4]]], tag


def write(path, text):
    path.write_text(text)
    return path


def arrays(path, **given):
    np.savez(path, **given)
    return path


def empty(folder):
    folder.mkdir()
    return folder


BAD = {
    "nothing there": (lambda t: t / "none", "does not exist"),
    "empty folder": (lambda t: empty(t / "e"), "holds no folders; expected one folder of images a class"),
    "loose images": (lambda t: bars(t) / "lying", "holds images, but no folders"),
    "one class": (lambda t: (bars(t / "b"), __import__("shutil").rmtree(t / "b" / "lying"), t / "b")[2], "two classes"),
    "empty class": (lambda t: (bars(t / "b"), (t / "b" / "c").mkdir(), t / "b")[2], "holds no images"),
    "not an image": (lambda t: write(bars(t / "b") / "lying" / "x.png", "words").parent.parent, "x.png cannot be read"),
    "unknown kind": (lambda t: write(t / "a.pdf", ""), "no folder of images and no npz"),
    "broken npz": (lambda t: write(t / "a.npz", "no"), "not an npz file"),
    "empty csv": (lambda t: write(t / "a.csv", "\n"), "is empty"),
    "words in a csv": (lambda t: write(t / "a.csv", "a,1,2\nb,x,2\n"), "expected numbers beside one column of labels"),
    "header only": (lambda t: write(t / "a.csv", "label,t0,t1\n"), "nothing below"),
    "ts header only": (lambda t: write(t / "a.ts", "@classLabel true a b\n@data\n"), "a.ts holds no series"),
    "one label": (lambda t: write(t / "a.csv", "a,1,2\na,1,2\n"), "one class only"),
    "no classes": (
        lambda t: write(t / "a.csv", "".join(f"{i}.5,1,2\n" for i in range(9))),
        "9 different labels in 9 lines in column '0'",
    ),
    "a folder too high": (lambda t: bars(t / "all" / "images").parent, "the classes may be in it: pstn fit .*images"),
    "npz without labels": (lambda t: arrays(t / "a.npz", x=np.zeros((4, 8, 8, 1))), "a.npz has x; expected x and y"),
    "npz with other names": (lambda t: arrays(t / "a.npz", data=np.zeros(4)), "a.npz has data; expected x and y"),
    "npz with unclear axes": (
        lambda t: arrays(t / "a.npz", x=np.zeros((4, 8, 8)), y=np.arange(4)),
        "say what its axes are, with --layout, one of 'NCL'",
    ),
    "npz with volumes": (
        lambda t: arrays(t / "a.npz", x=np.zeros((4, 1, 8, 8, 8)), y=np.arange(4) % 2),
        r"shape \(1, 8, 8, 8\), volumes; expected series or images",
    ),
    "npz with parts of two sizes": (
        lambda t: arrays(
            t / "a.npz",
            x_train=np.zeros((4, 8, 8, 1)),
            x_val=np.zeros((4, 8, 9, 1)),
            y_train=[0, 1] * 2,
            y_val=[0, 1] * 2,
        ),
        r"shape \(1, 8, 8\) to train on and \(1, 8, 9\) in x_val",
    ),
    "npz with gaps": (
        lambda t: arrays(t / "a.npz", x=np.full((4, 8, 8, 1), np.nan), y=np.arange(4) % 2),
        "NaN or infinite, in 4 of 4 examples",
    ),
    "a quotation mark left open": (
        lambda t: write(t / "a.csv", 'a,1,2\nb,1,2\n"a,1,2\n' + "b,1,2\n" * 30_000),
        "a.csv cannot be read: field larger .* a quotation mark may be left open",
    ),
    "a line cut off": (
        lambda t: write(t / "a.csv", "p,q,class\n1,2,a\n3,4,b\n5,6\n"),
        "line 4 has 2 cells; expected a label in column 'class'",
    ),
    "no label": (lambda t: write(t / "a.csv", "class,p,q\na,1,2\n,1,2\n"), "no label in column 'class'"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_what_is_wrong_is_said(case, tmp_path):
    make, words = case
    with pytest.raises((ValueError, OSError), match=words):
        read(make(tmp_path))


def test_a_truncated_image_is_named(tmp_path):
    bars(tmp_path)
    file = tmp_path / "standing" / "3.png"
    noise = np.random.default_rng(0).integers(0, 255, (16, 16), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    file.write_bytes(file.read_bytes()[:120])
    with pytest.raises(ValueError, match=r"3\.png cannot be read as an image"):
        read(tmp_path)


def test_another_shape_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2, 9)), y=np.arange(3))
    with pytest.raises(ValueError, match=r"shape \(2, 9\); the model takes series .* \(1, 40\)"):
        list(read_inputs(tmp_path / "a.npz", {"kind": "series", "layout": "NCL"}, (1, 40), ("a", "b")))
    folder, four = bars(tmp_path / "bars"), ({"kind": "images", "colour": False}, (4, 16, 16), ("lying", "standing"))
    with pytest.raises(ValueError, match="grey or coloured; the model takes 4 channels: give it npz files"):
        list(read_inputs(folder, *four))
    with pytest.raises(ValueError, match="grey or coloured; the model takes 4 channels: give it npz files"):
        read_again(folder, *four)
    with pytest.raises(ValueError, match="trained on images"):
        list(read_inputs(series_csv(tmp_path / "a.csv"), {"kind": "images"}, (1, 16, 16), ("a", "b")))
