"""The page over HTTP: it answers, stays at home, and refuses what it cannot use in words."""

import asyncio
import base64
import io
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from pstn.__main__ import main
from pstn.apply import BadInput, Trained
from pstn.data import Normalise
from pstn.recipe import network
from pstn.serve import server
from pstn.serve.looking import PIXELS, Looker, Move, Refused

SHAPE = (1, 20, 20)


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    how = {"kind": "images", "colour": False, "name": "shapes"}
    return Trained(network(SHAPE, 3, fill=-0.5).eval(), ("a", "b", "c"), SHAPE, Normalise(0.2, 0.4), how)


@pytest.fixture(scope="module")
def client(trained):
    return TestClient(server.application(trained))


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def pixels(address):
    kind, _, data = address.partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return np.asarray(image)


PICTURE = np.zeros((40, 30), np.uint8)
PICTURE[8:20, 10:16] = 255


def test_the_page_asks_nobody_else(client):
    page, script = client.get("/"), client.get("/page.js")
    assert page.status_code == script.status_code == 200
    for text in (page.text, script.text):
        assert not re.search(r"https?://|//[a-z]+\.", text)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    asked = set(re.findall(r'\$\("(\w+)"\)', script.text)) | {"rotation", "scale", "x", "y"}
    assert asked <= set(re.findall(r'id="(\w+)"', page.text)), "every part that the script moves is on the page"


def test_about(client):
    about = client.get("/about").json()
    assert about["classes"] == ["a", "b", "c"]
    assert about["shape"] == [1, 20, 20]


def test_a_look(client, trained):
    found = client.post("/look", content=png(PICTURE)).json()
    assert sum(found["probs"]) == pytest.approx(1, abs=1e-3)
    assert found["class"] == "abc"[int(np.argmax(found["probs"]))]
    assert 0 <= found["mutual_information"] <= found["entropy"] <= found["largest_entropy"]
    assert len(found["draws"]) == len(found["frames"]) == 8
    assert {pixels(one).shape for one in (found["input"], *found["draws"])} == {(20, 20)}
    x = torch.from_numpy(pixels(found["input"]) / 255).float()[None, None]
    assert trained.predict(x).probs[0].tolist() == pytest.approx(found["probs"], abs=0.01), "as pstn predict says"
    assert client.post("/look", content=png(PICTURE)).json() == found, "the same question has the same answer"


def test_moving_by_hand(client):
    still = client.post("/look", content=png(PICTURE)).json()
    right = client.post("/look?x=0.25", content=png(PICTURE)).json()
    assert right["input"] == still["input"]
    before, after = pixels(still["moved"]).astype(int), pixels(right["moved"]).astype(int)
    assert abs(after[:, 5:] - before[:, :-5]).max() <= 1, "a quarter of the width to the right"
    turned = pixels(client.post("/look?rotation=90", content=png(PICTURE)).json()["moved"]).astype(int)
    assert abs(turned - np.rot90(before)).max() <= 2, "anticlockwise"
    larger = pixels(client.post("/look?scale=2", content=png(PICTURE)).json()["moved"])
    assert larger.mean() > 2 * before.mean()


def test_a_move_is_rigid_on_any_shape():
    x = torch.zeros(1, 1, 16, 32)
    x[..., 4:12, 12:20] = 1
    assert (Move(rotation=90)(x, 0.0, False) - x).abs().max() < 1e-4, "a square in the middle, turned"


@pytest.mark.parametrize(
    ("content", "query", "status", "words"),
    [
        (b"", "", 400, "nothing was uploaded"),
        (b"hello", "", 400, "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "", 400, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "", 400, "not an image"),
        (png(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8))[:900], "", 400, "damaged, or cut off"),
        (b"0" * (server.LARGEST + 1), "", 413, "too large; expected at most 8 MiB"),
        (png(PICTURE), "?rotation=x", 400, "must be numbers"),
        (png(PICTURE), "?scale=0", 400, "scale between"),
        (png(PICTURE), "?x=nan", 400, "must be numbers"),
    ],
)
def test_what_is_refused_and_why(client, content, query, status, words):
    reply = client.post(f"/look{query}", content=content)
    assert reply.status_code == status
    assert words in reply.json()["error"]


def test_an_upload_without_end_is_cut_off(client):
    def endless():
        while True:
            yield b"0" * 2**20

    reply = client.post("/look", content=(part for part, _ in zip(endless(), range(20), strict=False)))
    assert reply.status_code == 413


def test_who_leaves_in_the_middle_of_an_upload_is_no_error(trained):
    scope = {"type": "http", "method": "POST", "path": "/look", "headers": [(b"host", b"localhost")]}
    left = iter([{"type": "http.request", "body": b"abc", "more_body": True}, {"type": "http.disconnect"}])
    sent = []

    async def receive():
        return next(left)

    async def send(message):
        sent.append(message)

    asyncio.run(server.application(trained)({**scope, "query_string": b""}, receive, send))
    assert sent[0]["status"] == 400


def test_a_bomb_is_not_opened(trained):
    side = int(PIXELS**0.5) + 1000
    bomb = io.BytesIO()
    Image.new("1", (side, side)).save(bomb, "PNG")
    with pytest.raises(Refused, match="million"):
        Looker(trained).read(bomb.getvalue())


def test_other_names_of_this_machine_are_refused(trained):
    assert TestClient(server.application(trained), base_url="http://evil.example").get("/about").status_code == 400
    open_to_all = server.application(trained, host="0.0.0.0")
    assert TestClient(open_to_all, base_url="http://here.example").get("/about").status_code == 200


def test_series_have_no_page():
    made = Trained(network((1, 40), 2), ("a", "b"), (1, 40), Normalise(), {"kind": "series"})
    with pytest.raises(BadInput, match="shows images"):
        server.application(made)


def test_models_of_values_on_another_scale_have_no_page(trained):
    loud = replace(trained, data={**trained.data, "values": [0.0, 255.0]})
    with pytest.raises(BadInput, match=r"reads images as values from 0 to 1, and .* trained on values from 0 to 255"):
        server.application(loud)


def test_a_port_that_is_taken(capsys, trained, tmp_path):
    folder = trained.save(tmp_path / "m")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(folder), "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 is taken" in " ".join(capsys.readouterr().err.split())
    assert main(["serve", str(tmp_path)]) == 2


def test_it_listens_and_stops(trained, tmp_path):
    folder = trained.save(tmp_path / "m")
    command = [sys.executable, "-u", "-m", "pstn", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        address = process.stdout.readline().split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{address}about", timeout=30) as reply:
            assert b'"shapes"' in reply.read()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(timeout=30) == 0
