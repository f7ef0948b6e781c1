"""Downloads: whole and right, or an error and nothing left behind."""

import errno
import hashlib
import http.server
import io
import threading

import pytest

from pstn.data import download
from pstn.data.download import fetch

CONTENT = bytes(range(256)) * 1000
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


@pytest.fixture
def server(monkeypatch):
    """Serves CONTENT at /whole, breaks off at /short, sends no length at /open, refuses all else; counts requests."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen.append(self.path)
            if self.path not in ("/whole", "/short", "/open"):
                self.send_error(404)
                return
            self.send_response(200)
            if self.path != "/open":
                self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:1000] if self.path == "/short" else CONTENT)

        def log_message(self, *_):
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.seen = []
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def left(folder):
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("page", ["whole", "open"])
def test_fetch(server, tmp_path, page):
    path = tmp_path / "a" / "b" / "file"
    assert fetch([f"{server.url}/{page}"], path, MD5) == path
    assert path.read_bytes() == CONTENT
    assert left(tmp_path) == ["file"]


def test_fetch_from_a_file(tmp_path):
    (tmp_path / "source").write_bytes(CONTENT)
    fetch([(tmp_path / "source").as_uri()], tmp_path / "copy", MD5)
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_mirrors_are_tried_in_order(server, tmp_path):
    fetch([f"{server.url}/{page}" for page in ("gone", "short", "whole", "open")], tmp_path / "file", MD5)
    assert server.seen == ["/gone", "/short", "/whole"]
    assert left(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("page", "md5", "match"),
    [
        ("gone", MD5, "404"),
        ("short", MD5, r"broke off after 1000 of 256000 bytes|IncompleteRead"),
        ("whole", "0" * 32, f"the file has md5 {MD5}, expected 00000"),
    ],
)
def test_a_bad_download_leaves_nothing(server, tmp_path, page, md5, match):
    with pytest.raises(ConnectionError, match=match) as caught:
        fetch([f"{server.url}/{page}"], tmp_path / "file", md5)
    assert f"put the file at {tmp_path / 'file'}" in str(caught.value)
    assert left(tmp_path) == []


def test_a_bad_download_spares_what_was_there(server, tmp_path):
    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(ConnectionError):
        fetch([f"{server.url}/short"], tmp_path / "file", MD5)
    assert (tmp_path / "file").read_bytes() == b"before"


def test_no_server_and_no_mirror(tmp_path):
    with pytest.raises(ConnectionError, match="could not download file"):
        fetch([(tmp_path / "nowhere").as_uri()], tmp_path / "file", MD5)
    with pytest.raises(ConnectionError, match="no mirror is known"):
        fetch([], tmp_path / "file", MD5)


def test_a_full_disk_is_said_and_no_other_mirror_is_tried(server, tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, block):
            super().write(block[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "open", Full, raising=False)
    with pytest.raises(OSError, match="No space left on device; XDG_CACHE_HOME names another place") as caught:
        fetch([f"{server.url}/whole", f"{server.url}/open"], tmp_path / "file", MD5)
    assert caught.value.errno == errno.ENOSPC
    assert server.seen == ["/whole"]
    assert left(tmp_path) == []


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(url):
        yield CONTENT[:5000], len(CONTENT)
        assert left(tmp_path) != []
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "_blocks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(["http://127.0.0.1/"], tmp_path / "file", MD5)
    assert left(tmp_path) == []
