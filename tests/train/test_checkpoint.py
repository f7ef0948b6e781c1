import errno
import json
import os
import struct
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from subject import assert_same, make_model, weights
from torch import nn

from pstn.train import CheckpointError, fit, load, load_model, save, save_model
from pstn.train.checkpoint import pack_optimizer, unpack_optimizer

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_what_is_saved_is_what_is_loaded(tmp_path, dtype, shape):
    value = torch.randint(0, 2, shape).to(dtype)
    meta = {"pi": 3.141592653589793, "list": [1, None, "ü"], "nested": {"tiny": 5e-324}}
    save(tmp_path / "a.safetensors", {"value": value}, meta)
    tensors, found = load(tmp_path / "a.safetensors")
    assert tensors["value"].dtype == dtype
    assert tensors["value"].shape == shape
    assert torch.equal(tensors["value"], value)
    assert found == meta


def test_views_and_shared_memory_are_saved_each_on_its_own(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    views = {"base": base, "again": base, "transposed": base.T, "row": base[1]}
    save(tmp_path / "a", views)
    tensors, _ = load(tmp_path / "a")
    for name, view in views.items():
        assert torch.equal(tensors[name], view)


def test_the_folder_is_made_and_nothing_else_is_left(tmp_path):
    save(tmp_path / "new" / "folder" / "a", {"x": torch.ones(1)})
    assert os.listdir(tmp_path / "new" / "folder") == ["a"]


class Killed(BaseException):
    """Stands for the end of the process: nothing is cleaned up."""


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), Killed()])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, error, call):
    path = tmp_path / "a.safetensors"
    save(path, {"x": torch.ones(3)}, {"version": 1})

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(type(error)) as caught:
            save(path, {"x": torch.zeros(3)}, {"version": 2})
    tensors, meta = load(path)
    assert meta == {"version": 1}
    assert torch.equal(tensors["x"], torch.ones(3))
    if isinstance(error, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert "a.safetensors" in str(caught.value)
        assert "intact" in str(caught.value)
        assert os.listdir(tmp_path) == ["a.safetensors"]
    save(path, {"x": torch.zeros(3)}, {"version": 3})  # whatever was left over is no obstacle
    assert load(path)[1] == {"version": 3}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's; the test above simulates it")
def test_a_full_disk_is_an_oserror_that_names_the_file(tmp_path):
    (tmp_path / "a.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left.*'.*a'"):
        save(tmp_path / "a", {"x": torch.ones(100_000)})


def test_every_truncation_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    save(path, {"x": torch.arange(10.0)}, {"epoch": 1})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged"):
            load(path)


def test_every_flipped_bit_of_the_content_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    save(path, {"x": torch.arange(10.0)}, {"epoch": 1})
    whole = path.read_bytes()
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    epoch = whole.index(b"epoch") + 9  # the digit: the JSON stays valid, the number changes
    assert whole[epoch : epoch + 1] == b"1"
    for position in [epoch, *range(start, len(whole))]:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged"):
            load(path)


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"\x80\x04pickle", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"]
)
def test_a_foreign_file_is_named(tmp_path, content):
    (tmp_path / "foreign").write_bytes(content)
    with pytest.raises(CheckpointError, match="foreign is"):
        load(tmp_path / "foreign")


def test_a_safetensors_file_of_another_program_is_named(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"other\.safetensors is a safetensors file, but not one that pstn wrote"):
        load(tmp_path / "other.safetensors")


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing_here"):
        load(tmp_path / "nothing_here")


def test_only_tensors_are_tensors(tmp_path):
    with pytest.raises(TypeError, match="x is a int"):
        save(tmp_path / "a", {"x": 3})


def test_a_model_comes_back(tmp_path, model):
    save_model(model, tmp_path / "model", {"note": "n"})
    other = type(model)(nn.Identity())  # any model of another make
    with pytest.raises(CheckpointError, match=r"does not fit this STN: .*is not in the model.*and \d+ more"):
        load_model(other, tmp_path / "model")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for value in model.state_dict().values():
        value.zero_()
    assert load_model(model, tmp_path / "model") == {"note": "n"}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_model_comes_back_from_a_run_whose_optimizer_remembers_nothing(tmp_path, data, config):
    model, other = make_model(), make_model(1)
    fit(model, data, config=replace(config, optimizer="sgd", momentum=0.0), directory=tmp_path, progress=False)
    load_model(other, tmp_path / "checkpoint.safetensors")
    assert_same(weights(model), weights(other))


def test_tied_layers_come_back_tied(tmp_path):
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    save_model(model, tmp_path / "model")
    other = nn.Linear(2, 2)
    tied = nn.Sequential(other, nn.ReLU(), other)
    load_model(tied, tmp_path / "model")
    assert tied[0] is tied[2]
    assert torch.equal(tied[2].weight, layer.weight)


def test_a_model_that_differs_is_told_how(tmp_path):
    save_model(nn.Linear(2, 3), tmp_path / "m")
    target = nn.Linear(4, 3)
    before = target.weight.clone()
    with pytest.raises(CheckpointError, match=r"weight is \(3, 2\) in the file, \(3, 4\) in the model"):
        load_model(target, tmp_path / "m")
    with pytest.raises(CheckpointError, match="bias is not in the model"):
        load_model(nn.Linear(2, 3, bias=False), tmp_path / "m")
    save_model(nn.Linear(2, 3, bias=False), tmp_path / "m")
    with pytest.raises(CheckpointError, match="bias is missing"):
        load_model(nn.Linear(2, 3), tmp_path / "m")
    assert torch.equal(target.weight, before)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, fused=True),
        lambda p: torch.optim.AdamW(p, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ],
)
def test_an_optimizer_goes_on_as_if_it_had_not_stopped(tmp_path, make):
    def step(layer, optimizer, seed):
        optimizer.zero_grad()
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        layer(x).square().sum().backward()
        optimizer.step()

    first = nn.Linear(3, 2)
    a = make(first.parameters())
    step(first, a, 0)
    tensors, rest = pack_optimizer(a.state_dict())
    save(tmp_path / "o", tensors, rest)
    tensors, rest = load(tmp_path / "o")
    assert json.dumps(rest)  # plain JSON all the way down
    second = nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    b = make(second.parameters())
    b.load_state_dict(unpack_optimizer(tensors, rest))
    for seed in (1, 2):
        step(first, a, seed)
        step(second, b, seed)
    assert torch.equal(first.weight, second.weight)
    assert a.state_dict()["param_groups"] == b.state_dict()["param_groups"]
