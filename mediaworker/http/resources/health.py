"""`/healthz`, `/readyz` and `/metrics`: the routes for load balancers and monitoring."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mediaworker.http.context import OperatorContext
from mediaworker.http.problem import Problem
from mediaworker.ops.exposition import exposition


def routes(context: OperatorContext) -> list[Route]:
    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        reasons, shown = context.readiness()
        if not context.is_known(request):
            reasons, shown = without_names(reasons, shown)
        if reasons:
            return Problem(503, "; ".join(reasons), reasons=reasons, **shown).response()
        return JSONResponse({"status": "ready", **shown})

    async def metrics(request: Request) -> Response:
        context.authorize(request, "metrics")
        body, content_type = exposition(context.metrics)
        return Response(body, headers={"Content-Type": content_type})

    return [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def without_names(reasons: list[str], shown: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the contents of `/readyz` for a client without a key, such as a load balancer: the names of SIP accounts
    and the addresses of engine servers are masked."""
    names = [each["account"] for each in shown.get("sip", ())]
    names += [each["address"] for each in shown.get("engine", {}).get("servers", ())]
    return _masked(reasons, names), _masked(shown, names)


def _masked(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, str):
        for name in sorted(filter(None, names), key=len, reverse=True):
            value = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "***", value)
        return value
    if isinstance(value, dict):
        return {key: _masked(item, names) for key, item in value.items()}
    return [_masked(item, names) for item in value] if isinstance(value, list) else value
