"""`GET /v1/key`: what the key of this request may do, so that a page offers only that."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mediaworker.http.context import ApiContext


def routes(context: ApiContext) -> list[Route]:
    async def key(request: Request) -> Response:
        access = context.authorize(request, None)
        return JSONResponse({"name": access.name, "scopes": list(access.scopes)})

    return [Route("/v1/key", key, methods=["GET"])]
