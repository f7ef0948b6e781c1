"""Series from text: UCR's tsv, the .ts format, and the archive by name."""

import gzip

import pytest
import torch

from pstn.data import read_ts, read_tsv, ucr
from pstn.grid import resized

TSV = "2\t0.5\t1.5\t-1e-3\n-1\t1\t2\t3\n2\t4\t5\t6\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["S_TRAIN.tsv", "S_TRAIN.tsv.gz"])
@pytest.mark.parametrize("between", ["\t", ",", "  "])
def test_tsv(tmp_path, name, between):
    data = read_tsv(write(tmp_path / name, TSV.replace("\t", between) + "\n"))
    assert data.x.dtype == torch.float32
    assert torch.allclose(data.x[:, 0], torch.tensor([[0.5, 1.5, -0.001], [1, 2, 3], [4, 5, 6]]))
    assert (data.y.tolist(), data.classes, data.name) == ([1, 0, 1], ("-1", "2"), "S_TRAIN")


def test_tsv_labels_in_scientific_notation_and_words(tmp_path):
    numbers = read_tsv(write(tmp_path / "a.tsv", "  1.0000000e+01  3 4\n  9.0000000e+00  3 4\n"))
    assert (numbers.classes, numbers.y.tolist()) == (("9", "10"), [1, 0])
    names = read_tsv(write(tmp_path / "b.csv", "cat,3,4\nant,3,4\n"))
    assert (names.classes, names.y.tolist()) == (("ant", "cat"), [1, 0])


@pytest.mark.parametrize(("one", "other"), [("1_2", "12"), ("9007199254740992", "9007199254740993")])
def test_labels_that_look_like_one_number_stay_apart(tmp_path, one, other):
    assert read_tsv(write(tmp_path / "a.tsv", f"{one}\t1\t2\n{other}\t3\t4\n")).y.unique().numel() == 2
    text = f"@classLabel true {one} {other}\n@data\n1,2:{one}\n3,4:{other}\n"
    assert set(read_ts(write(tmp_path / "a.ts", text)).classes) == {one, other}


def test_tsv_classes_given_in_another_order(tmp_path):
    path = write(tmp_path / "a.tsv", TSV)
    assert read_tsv(path, classes=("2", "7", "-1")).y.tolist() == [0, 2, 0]
    with pytest.raises(ValueError, match=r"labels \['-1'\], which are not among its classes \['2'\]"):
        read_tsv(path, classes=("2",))


@pytest.mark.parametrize("short", ["1\t0\t4\tNaN\tnan", "1\t0\t4\t\t", "1\t0\t4"])
def test_tsv_of_unequal_lengths(tmp_path, short):
    path = write(tmp_path / "a.tsv", f"{short}\n2\t1\t2\t3\t4\n")
    with pytest.raises(ValueError, match=r'series of 2 to 4 points.*length="longest"'):
        read_tsv(path)
    longest = read_tsv(path, length="longest").x[:, 0]
    # Edges stay: the two points sit at 1/4 and 3/4, the four at 1/8, 3/8, 5/8, 7/8.
    assert longest.tolist() == [[0, 1, 3, 4], [1, 2, 3, 4]]
    assert read_tsv(path, length=2).x[:, 0].tolist() == [[0, 4], [1.5, 3.5]]


def test_resampling_agrees_with_torch(tmp_path):
    values = torch.rand(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    path = write(tmp_path / "a.tsv", "1\t" + "\t".join(map(repr, values.tolist())))
    expected = torch.nn.functional.interpolate(values[None, None], size=23, mode="linear", align_corners=False)
    assert torch.allclose(read_tsv(path, length=23).x.double(), expected, atol=1e-6)


def test_shrinking_takes_means_and_loses_no_point(tmp_path):
    values = torch.rand(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    path = write(tmp_path / "a.tsv", "1\t" + "\t".join(map(repr, values.tolist())))
    assert torch.allclose(read_tsv(path, length=6).x[0, 0].double(), values.view(6, 10).mean(1), atol=1e-6)
    assert torch.equal(read_tsv(path, length=36).x, resized(values[None, None], (36,)).float())


def test_tsv_missing_values(tmp_path):
    path = write(tmp_path / "a.tsv", "1\tNaN\t2\tNaN\tNaN\t5\n2\t1\t2\t3\t4\t5\n")
    with pytest.raises(ValueError, match=r"series 0 \(counted from 0\) lacks 3 of 5 values, the first at 0"):
        read_tsv(path)
    assert read_tsv(path, missing="interpolate").x[0, 0].tolist() == [2, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="missing is 'drop'; expected one of 'error', 'interpolate'"):
        read_tsv(path, missing="drop")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "holds no series"),
        ("1\t2\t3\n1\tx\t3\n", r"line 2: .*'x'"),
        ("label\ttime\n1\t2\n", "line 1: .*expected numbers"),
        ("1\t2\n3\n", "line 2 has no values"),
        ("1\tNaN\tNaN\n", "line 1 has no values"),
        ("NaN\t1\t2\n", "line 1 has no label"),
        ("\t1\t2\n", "line 1 has no label"),
        ("1\t2\tinf\n2\t2\t3\n", "NaN or infinite"),
    ],
)
def test_bad_tsv(tmp_path, text, match):
    with pytest.raises(ValueError, match=match):
        read_tsv(write(tmp_path / "a.tsv", text))


def test_files_that_are_no_text_truncated_or_missing(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ValueError, match="is not a text file"):
        read_tsv(tmp_path / "a.tsv")
    (tmp_path / "a.csv").write_text("süß,1,2\nherb,1,2\n", encoding="latin-1")
    with pytest.raises(ValueError, match="if it is text, save it as UTF-8"):
        read_tsv(tmp_path / "a.csv")
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(TSV.encode())[:-10])
    with pytest.raises(ValueError, match="truncated or damaged"):
        read_tsv(tmp_path / "b.tsv.gz")
    for reader in (read_tsv, read_ts):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            reader(tmp_path / "c.tsv")


@pytest.mark.parametrize("length", [0, -3])
def test_bad_length(tmp_path, length):
    with pytest.raises(ValueError, match="at least one point"):
        read_tsv(write(tmp_path / "a.tsv", TSV), length=length)


HEADER = "# made up\n@problemName Made\n@timeStamps false\n@missing false\n@univariate true\n@equalLength true\n"


def test_ts_of_one_channel(tmp_path):
    text = f"{HEADER}@seriesLength 3\n@classLabel true b a c\n@data\n1,2,3:a\n4,5,6:b\n"
    for name in ("Made_TRAIN.ts", "Made_TRAIN.ts.gz"):
        data = read_ts(write(tmp_path / name, text))
        assert data.x.tolist() == [[[1, 2, 3]], [[4, 5, 6]]]
        assert (data.y.tolist(), data.classes, data.name) == ([0, 1], ("a", "b", "c"), "Made_TRAIN")


def test_ts_brackets_of_a_label_are_no_time_stamps(tmp_path):
    text = "@classLabel true walk(fast) run\n@data\n1,2:walk(fast)\n3,4:run\n"
    assert read_ts(write(tmp_path / "a.ts", text)).classes == ("run", "walk(fast)")


def test_ts_of_many_channels_lengths_and_gaps(tmp_path):
    text = "@dimensions 2\n@CLASSLABEL TRUE 1 2\n@Data\n1,?,3:4,5,6:2.0\n7,8:9,NaN:1\n"
    path = write(tmp_path / "a.ts", text)
    with pytest.raises(ValueError, match="2 to 3 points"):
        read_ts(path)
    with pytest.raises(ValueError, match="lacks 1 of 3 values"):
        read_ts(path, length="longest")
    data = read_ts(path, length="longest", missing="interpolate")
    assert data.x[0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert data.x[1].tolist() == [[7, 7.5, 8], [9, 9, 9]]
    assert data.y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("@timeStamps true\n@classLabel true a b\n@data\n(0,1),(1,2):a\n", "time stamps, which are not supported"),
        ("@classLabel true a b\n@data\n(0,1),(1,2):a\n", "line 3 has time stamps"),
        ("@classLabel false\n@data\n1,2\n", "no class labels"),
        ("@targetLabel true\n@data\n1,2:0.5\n", "no class labels"),
        ("@classLabel true a b\n1,2:a\n", "before @data"),
        ("@classLabel true a b\n", "no @data line"),
        ("", "no @data line"),
        ("@classLabel true a b\n@data\n", "holds no series"),
        ("@classLabel true a b\n@data\n1,2\n", "line 3 has no label"),
        ("@classLabel true\n@data\n1,2:\n3,4:b\n", "line 3 has no label"),
        ("@classLabel true\n@data\n1,2:a\n3,4:?\n", "line 4 has no label"),
        ("@classLabel true a b\n@data\n1,2:c\n", r"labels \['c'\], which are not among its classes \['a', 'b'\]"),
        ("@classLabel true a b\n@data\n1,2:3,4:a\n1,2:b\n", "line 4 has 1 channels, 2 expected"),
        ("@dimensions 3\n@classLabel true a b\n@data\n1,2:3,4:a\n", "line 4 has 2 channels, 3 expected"),
        ("@classLabel true a b\n@data\n1,x:a\n", "line 3: .*'x'"),
        ("@classLabel true a b\n@data\n?,?:a\n", "has no values"),
    ],
)
def test_bad_ts(tmp_path, text, match):
    with pytest.raises(ValueError, match=match):
        read_ts(write(tmp_path / "a.ts", text))


@pytest.fixture
def archive(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PSTN_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "UCR"
    write(folder / "One" / "One_TRAIN.tsv.gz", "1\t1\t2\n3\t3\t4\n")
    write(folder / "One" / "One_TEST.tsv", "3\t5\t6\n2\t7\t8\n")
    write(folder / "Two" / "Two_TRAIN.ts", "@classLabel true a b\n@data\n1,2,3,4:5,6,7,8:b\n")
    write(folder / "Two" / "Two_TEST.ts.gz", "@classLabel true a b\n@data\n1,2:5,6:a\n")
    write(folder / "Half" / "Half_TRAIN.tsv", "1\t1\t2\n3\t3\t4\n")
    return tmp_path / "data"


def test_ucr_splits_share_their_classes(archive):
    train, test = ucr("One", "train"), ucr("One", "test")
    assert train.classes == test.classes == ("1", "2", "3")
    assert (train.y.tolist(), test.y.tolist()) == ([0, 2], [2, 1])
    assert test.x.tolist() == [[[5, 6]], [[7, 8]]]
    assert (train.name, test.name) == ("One train", "One test")


def test_ucr_splits_share_their_length(archive):
    assert ucr("Two", "train", length="longest").x.shape == (1, 2, 4)
    assert ucr("Two", "test", length="longest").x.shape == (1, 2, 4)
    assert ucr("Two", "test").x.shape == (1, 2, 2)


def test_ucr_of_which_only_half_is_there(archive, monkeypatch):
    monkeypatch.delenv("PSTN_DATA")
    assert len(ucr("Half", "train", archive)) == 2
    with pytest.raises(FileNotFoundError, match=r"Half test is not at hand.*at hand: Half, One, Two\. The archive"):
        ucr("Half", "test", archive)
    with pytest.raises(FileNotFoundError, match="at hand: none"):
        ucr("Half", "train")
    with pytest.raises(ValueError, match="split is 'valid'; expected one of 'train', 'test'"):
        ucr("Half", "valid", archive)
