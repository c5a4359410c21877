"""`GET /` and the files of the page, which are public, and `GET /v1/key`: the scopes of the request's key."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mediaworker.http.context import ApiContext

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml; charset=utf-8",
}
HEADERS = {
    # The page holds an API key and shows texts of strangers, so it may load nothing from other sites, run no inline
    # script and turn no text into markup. Its only image is its icon; its audio worklet is a script of the page;
    # downloads need no permission.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers revalidate each time, and are answered 304 when nothing has changed
}
INDEX = "index.html"
TOKEN = "once"
"""The query parameter of the one-time link that opens the page where no API keys are configured."""


def names() -> list[str]:
    """Return the names of the page's files."""
    return sorted(file.name for file in files("mediaworker.web").iterdir() if PurePath(file.name).suffix in TYPES)


def path_of(name: str) -> str:
    return {INDEX: "/", "docs.html": "/docs"}.get(name, f"/{name}")


def routes(context: ApiContext) -> list[Route]:
    async def key(request: Request) -> Response:
        """Return the name and scopes of the key, so that the page offers only what it may do."""
        access = context.authorize(request, None)
        return JSONResponse({"name": access.name, "scopes": list(access.scopes)})

    return [Route("/v1/key", key, methods=["GET"]), *(_route(name, context) for name in names())]


def _route(name: str, context: ApiContext) -> Route:
    body = (files("mediaworker.web") / name).read_bytes()
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"Content-Type": TYPES[PurePath(name).suffix], "ETag": etag, **HEADERS}

    async def file(request: Request) -> Response:
        token = request.query_params.get(TOKEN) if name == INDEX and request.method == "GET" else None
        if token and not context.settings.auth.api_keys:
            # A browser sends no server the part behind the hash, and the page removes the key from the address.
            key = context.sessions.redeem(token)
            headers_ = {"Location": f"/#key={key}" if key else "/#used", "Cache-Control": "no-store"}
            return Response(status_code=303, headers=HEADERS | headers_)
        if is_known(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers={"ETag": etag, **HEADERS})
        return Response(body, headers=headers)

    return Route(path_of(name), file, methods=["GET"], name=name)


def is_known(if_none_match: str, etag: str) -> bool:
    """Return whether the client has this version, by weak comparison (RFC 9110 section 13.1.2): a proxy that compresses
    makes the tag a weak one."""
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in if_none_match.split(","))
