"""``pstn serve``: the page and its questions over HTTP, on this machine by default; nothing comes from elsewhere."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

from rich.console import Console

from pstn.apply.files import Trained, load
from pstn.apply.read import other_scale
from pstn.apply.settings import Serve
from pstn.apply.wrong import BadInput, given
from pstn.serve.looking import Looker, Move, Refused

HERE = Path(__file__).parent
#: The most bytes that an upload may have.
LARGEST = 8 * 2**20
_HEADERS = {
    # the page talks to its own server and to nobody else
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def serve(settings: Serve, console: Console) -> None:
    """Do what the settings ask for, until Ctrl-C."""
    uvicorn = _uvicorn()
    with given():
        from pstn.apply.fit import device_of

        trained = load(settings.model, device=device_of(settings.device))
        made = application(trained, settings.host)
        listening = bound(settings.host, settings.port)
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    console.print(f"http://{host}:{port}/   Ctrl-C stops", highlight=False, soft_wrap=True)
    server = uvicorn.Server(uvicorn.Config(made, log_level="warning", lifespan="off"))
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass  # that is how one stops it
    finally:
        listening.close()


def application(trained: Trained, host: str = "127.0.0.1") -> Any:
    """The web application of a model of images.

    Arguments:
        trained: The model.
        host: The address it listens on; requests under other names are refused where only this machine is meant.
    """
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise ImportError("the page needs starlette and uvicorn: pip install 'pstn[serve]'") from error
    if trained.kind != "images" or len(trained.shape) != 3 or trained.shape[0] not in (1, 3):
        raise BadInput(f"the page shows images, grey or coloured; this model takes {trained.kind} {trained.shape}")
    if scale := other_scale(trained.data):
        raise BadInput(f"the page reads images as {scale}; train it on arrays from 0 to 1, or of uint8")
    looker = Looker(trained)

    async def page(request: Request) -> Response:
        return Response((HERE / "page.html").read_bytes(), media_type="text/html", headers=_HEADERS)

    async def script(request: Request) -> Response:
        return Response((HERE / "page.js").read_bytes(), media_type="text/javascript", headers=_HEADERS)

    async def about(request: Request) -> Response:
        return JSONResponse(looker.about(), headers=_HEADERS)

    async def look(request: Request) -> Response:
        try:
            upload = await _body(request)
            move = _move(request.query_params)
            found = await run_in_threadpool(lambda: looker.look(looker.read(upload), move))
        except Refused as error:
            return JSONResponse({"error": str(error)}, status_code=error.status, headers=_HEADERS)
        except ClientDisconnect:  # in the middle of an upload: nobody is there to be answered
            return Response(status_code=400)
        return JSONResponse(found, headers=_HEADERS)

    routes = [
        Route("/", page),
        Route("/page.js", script),
        Route("/about", about),
        Route("/look", look, methods=["POST"]),
    ]
    # A page elsewhere can name this machine as its own; its requests then carry its name.
    own = ["127.0.0.1", "localhost", "[::1]", "testserver", host]
    hosts = own if host in ("127.0.0.1", "localhost", "::1") else ["*"]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)])


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen()
    except (OSError, OverflowError) as error:
        made.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "is taken by another program; --port 0 takes any that is free" if taken else f"cannot be used: {error}"
        raise BadInput(f"port {port} of {host} {why}") from error
    return made


async def _body(request: Any) -> bytes:
    """What was uploaded, read no further than is allowed."""
    too_large = Refused(f"the upload is too large; expected at most {LARGEST // 2**20} MiB", 413)
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > LARGEST:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def _move(query: Any) -> Move:
    try:
        return Move(**{name: float(query[name]) for name in ("rotation", "scale", "x", "y") if name in query})
    except Refused:
        raise
    except ValueError as error:
        raise Refused("rotation, scale, x and y must be numbers") from error


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("the page needs starlette and uvicorn: pip install 'pstn[serve]'") from error
    return uvicorn
