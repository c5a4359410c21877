"""`/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mediaworker.http.context import ApiContext
from mediaworker.http.problem import Problem


def routes(context: ApiContext) -> list[Route]:
    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        reasons = list(context.ready())
        if (trouble := context.hub.trouble) is not None:
            reasons.append(f"events are not being stored: {trouble}")
        sip = [dict(registration) for registration in context.sip_status()]
        warnings = [*context.hub.warnings, *context.warnings()]
        shown: dict[str, Any] = {"warnings": warnings, "sip": sip, "engine": dict(context.engine())}
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
