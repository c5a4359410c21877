"""`/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mediaworker.http.context import OperatorContext
from mediaworker.http.problem import Problem


def routes(context: OperatorContext) -> list[Route]:
    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        reasons, shown = context.readiness()
        if reasons:
            return Problem(503, "; ".join(reasons), reasons=reasons, **shown).response()
        return JSONResponse({"status": "ready", **shown})

    async def metrics(request: Request) -> Response:
        context.authorize(request, "admin")
        body, content_type = context.metrics.exposition()
        return Response(body, headers={"Content-Type": content_type})

    return [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
