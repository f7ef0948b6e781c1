"""The served page in a real browser, headless: it draws, takes files, moves them, answers and complains.

Needs Chromium and its driver (Debian: ``apt-get install chromium chromium-driver``). What needs no browser is tested in
test_serve.py, always. ``PSTN_SCREENSHOTS=folder`` keeps the pictures.
"""

import base64
import io
import os
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import torch
import uvicorn
from PIL import Image

from pstn.apply import Trained
from pstn.data import Normalise
from pstn.recipe import network
from pstn.serve import server

DRIVER = shutil.which("chromedriver")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # what the protocol calls a reference to an element
CLASSES = ("triangle", "square", "a shape with quite a long name")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (DRIVER and BROWSER), reason="no Chromium with its driver: the page is tried in no browser"),
]


class Browser:
    """A browser, by the W3C's WebDriver protocol."""

    def __init__(self, address):
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        chrome = {"binary": BROWSER, "args": options}
        logs = {"browser": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": logs}
        self.http = httpx.Client(base_url=address, timeout=60, trust_env=False)
        self.session = ""
        self.session = f"/session/{self.ask('POST', '/session', capabilities={'alwaysMatch': wanted})['sessionId']}"

    def ask(self, method, path, **body):
        reply = self.http.request(method, self.session + path, json=body if method == "POST" else None)
        assert reply.status_code == 200, reply.text[:500]
        return reply.json()["value"]

    def run(self, script, *args):
        return self.ask("POST", "/execute/sync", script=script, args=list(args))

    def find(self, css):
        return self.ask("POST", "/element", using="css selector", value=css)[ELEMENT]

    def text(self, css):
        return self.run("return document.querySelector(arguments[0]).textContent", css)

    def count(self, css):
        return self.run("return document.querySelectorAll(arguments[0]).length", css)

    def wait(self, script, *args):
        """The first true answer of a script."""
        end = time.monotonic() + 30
        while not (found := self.run(script, *args)):
            assert time.monotonic() < end, f"in vain: {script}; the page says {self.text('#error')!r}"
            time.sleep(0.05)
        return found

    def open(self, page, width=1100, height=900):
        self.ask("POST", "/window/rect", width=width, height=height)
        self.ask("POST", "/url", url=page)
        self.wait("return document.body.dataset.ready === 'yes'")

    def upload(self, path):
        self.ask("POST", f"/element/{self.find('#file')}/value", text=str(path))

    def click(self, css):
        self.ask("POST", f"/element/{self.find(css)}/click")

    def draw(self, *points):
        """Drag the pointer over the pad, from one point to the next, in pixels from its middle."""
        pad = {ELEMENT: self.find("#pad")}
        moves = [{"type": "pointerMove", "duration": 20, "origin": pad, "x": x, "y": y} for x, y in points]
        steps = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        self.ask("POST", "/actions", actions=[{"type": "pointer", "id": "mouse", "actions": steps}])

    def slide(self, name, value):
        script = "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        self.run(script + "s.dispatchEvent(new Event('input'))", name, str(value))

    def answered(self, action):
        """Do something, and wait until the page shows what the model says of it."""
        before = self.run("return document.body.dataset.shown || '0'")
        action()
        self.wait("return (document.body.dataset.shown || '0') !== arguments[0]", before)

    def picture(self, path):
        """A picture of the page as the browser shows it."""
        path.write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))
        if kept := os.environ.get("PSTN_SCREENSHOTS"):
            shutil.copy(path, kept)
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB")).astype(int)

    def close(self):
        self.ask("DELETE", "")
        self.http.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as made:
        return made.getsockname()[1]


@pytest.fixture(scope="module")
def driver():
    port = free_port()
    with subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}"
        for _ in range(200):
            try:
                httpx.get(f"{address}/status", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield address
        process.terminate()


@pytest.fixture(scope="module")
def browser(driver):
    made = Browser(driver)
    yield made
    made.close()


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    how = {"kind": "images", "colour": False, "name": "shapes"}
    return Trained(network((1, 20, 20), 3, fill=-0.5).eval(), CLASSES, (1, 20, 20), Normalise(0.2, 0.4), how)


@contextmanager
def served(trained):
    """The address of a model's page."""
    listening = server.bound("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(server.application(trained), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    running.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture(scope="module")
def page(trained):
    with served(trained) as address:
        yield address


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


SQUARE = np.zeros((40, 30), np.uint8)
SQUARE[8:20, 10:16] = 255


def test_drawing_is_answered(browser, page, tmp_path):
    browser.open(page)
    assert browser.text("#name") == "shapes: 3 classes"
    assert browser.text("#answer") == "–"
    browser.answered(lambda: browser.draw((-50, 50), (0, -50), (50, 50), (-50, 50)))
    probs = browser.run("return [...document.querySelectorAll('#bars output')].map(o => Number(o.textContent))")
    assert len(probs) == 3
    assert sum(probs) == pytest.approx(1, abs=0.002)
    assert browser.text("#answer").startswith(CLASSES[int(np.argmax(probs))])
    assert browser.count("#draws img") == 8
    assert browser.text("#error") == ""
    shown = browser.picture(tmp_path / "drawn.png")
    red, green, blue = shown[..., 0], shown[..., 1], shown[..., 2]
    assert ((red > 180) & (green < 150) & (blue < 80)).sum() > 200, "the frames that it considers, in red"
    browser.click("#clear")
    assert browser.text("#answer") == "–"
    assert browser.count("#draws img") == 0


def test_the_page_says_what_the_model_says(browser, page, trained, tmp_path):
    from pstn.serve.looking import Looker, Move

    (tmp_path / "square.png").write_bytes(png(SQUARE))
    browser.open(page)
    browser.answered(lambda: browser.upload(tmp_path / "square.png"))
    looker = Looker(trained)
    x = looker.read(png(SQUARE))
    for moves in ({}, {"rotation": 90.0}, {"rotation": 90.0, "scale": 1.5, "x": 0.25, "y": -0.1}):
        for name, value in moves.items():
            browser.answered(lambda name=name, value=value: browser.slide(name, value))
        expected = looker.look(x, Move(**moves))
        answer = browser.run("return [...document.querySelectorAll('output')].map(o => o.textContent)")
        assert [float(text) for text in answer[4:7]] == pytest.approx(expected["probs"], abs=6e-4)
        assert float(answer[7]) == pytest.approx(expected["entropy"], abs=6e-4)
    assert answer[:4] == ["90°", "150 %", "25 %", "-10 %"]
    browser.picture(tmp_path / "moved.png")
    browser.answered(lambda: browser.click("#back"))
    assert browser.run("return [...document.querySelectorAll('input[type=range]')].map(s => s.value)") == list("0100")


DROP = """
const file = new File([Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0))], "dropped", {type: "image/png"});
const data = new DataTransfer();
data.items.add(file);
const how = {dataTransfer: data, bubbles: true, cancelable: true};
for (const kind of ["dragover", "drop"]) document.getElementById("pad").dispatchEvent(new DragEvent(kind, how));
"""


def test_a_dropped_image_is_taken(browser, page):
    browser.open(page)
    browser.answered(lambda: browser.run(DROP, base64.b64encode(png(SQUARE)).decode()))
    assert browser.count("#bars .bar") == 3
    assert not browser.run("return document.getElementById('pad').classList.contains('over')")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"words, and no image", "not an image"), (b"0" * (server.LARGEST + 1), "too large"), (b"", "nothing was")],
    ids=["words", "large", "empty"],
)
def test_a_refusal_is_read_on_the_page(browser, page, tmp_path, content, words):
    (tmp_path / "good.png").write_bytes(png(SQUARE))
    (tmp_path / "bad.png").write_bytes(content)
    browser.open(page)
    browser.answered(lambda: browser.upload(tmp_path / "good.png"))
    browser.upload(tmp_path / "bad.png")
    browser.wait("return document.getElementById('error').textContent.includes(arguments[0])", words)
    assert browser.text("#answer") == "–", "the answer before was about another image"
    browser.picture(tmp_path / f"refused-{words.split()[0]}.png")
    browser.answered(lambda: browser.upload(tmp_path / "good.png"))
    assert browser.text("#error") == "", "a good image after a bad one"


def test_nobody_else_is_asked_and_nothing_goes_wrong(browser, page):
    browser.ask("POST", "/se/log", type="browser")  # what was said before is not about this
    browser.open(page)
    browser.answered(lambda: browser.draw((-40, 0), (40, 0)))
    asked = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert any("look?" in address for address in asked)
    assert all(address.startswith((page, "data:", "blob:")) for address in asked), asked
    assert browser.ask("POST", "/se/log", type="browser") == []


def test_a_narrow_window(browser, page, tmp_path):
    browser.open(page, width=500, height=1600)
    browser.answered(lambda: browser.draw((-40, -40), (40, 40)))
    browser.picture(tmp_path / "narrow.png")
    wide = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], "nothing sticks out to the right"


def test_the_canvases_have_the_shape_of_the_input(browser, tmp_path):
    how = {"kind": "images", "colour": True, "name": "wide"}
    made = Trained(network((3, 16, 32), 2, fill=-0.5).eval(), ("a", "b"), (3, 16, 32), Normalise(0.2, 0.4), how)
    with served(made) as address:
        browser.open(address)
        browser.answered(lambda: browser.draw((0, 0)))
        browser.picture(tmp_path / "wide.png")
        for name in ("pad", "seen"):
            box = browser.run("const b = document.getElementById(arguments[0]); return [b.width, b.height]", name)
            shown = browser.run(
                "const b = document.getElementById(arguments[0]).getBoundingClientRect(); return [b.width, b.height]",
                name,
            )
            assert box[0] == 2 * box[1]
            assert shown[0] == pytest.approx(2 * shown[1], abs=3)
