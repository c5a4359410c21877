"""The HTTP application, put together from the routes' modules."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from mediaworker.api import calls, events, health, page
from mediaworker.api.context import ApiContext, LiveCall, LiveCalls
from mediaworker.api.problem import Problem, on_error, on_http_exception, on_problem
from mediaworker.api.server import HttpServer

__all__ = ["ApiContext", "HttpServer", "LiveCall", "LiveCalls", "create_app"]


def create_app(context: ApiContext, extra_routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Every route of the HTTP port. `extra_routes` are those of the ingresses, which check access themselves."""
    app = Starlette(
        routes=[
            *health.routes(context),
            *calls.routes(context),
            *events.routes(context),
            *extra_routes,
            *page.routes(),
        ],
        exception_handlers={Problem: on_problem, HTTPException: on_http_exception, Exception: on_error},
    )
    app.router.redirect_slashes = False
    app.router.default = _not_found
    return app


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404, "no such route")
