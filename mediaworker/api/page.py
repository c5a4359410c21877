"""`GET /`: the page. It is open; the data it shows is not."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/app.css": ("app.css", "text/css; charset=utf-8"),
}
HEADERS = {
    # Nothing from elsewhere, nothing inline; the page holds a key and shows what strangers say.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def routes() -> list[Route]:
    return [_route(path, name, content_type) for path, (name, content_type) in FILES.items()]


def _route(path: str, name: str, content_type: str) -> Route:
    body = (files("mediaworker.ui") / name).read_bytes()

    async def file(request: Request) -> Response:
        return Response(body, headers={"Content-Type": content_type, **HEADERS})

    return Route(path, file, methods=["GET"], name=name)
