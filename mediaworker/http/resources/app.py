"""The HTTP application: it collects the routes of all modules, and answers errors and unknown paths."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send

from mediaworker.calls.directory import OwnerAway
from mediaworker.http.context import ApiContext, OperatorContext
from mediaworker.http.problem import OPENAI, Problem, problem_of
from mediaworker.http.resources import calls, events, health, page, playback
from mediaworker.http.server import HttpServer
from mediaworker.storage.database_thread import StoreError

__all__ = ["ApiContext", "HttpServer", "create_app"]


def create_app(context: ApiContext, extra_routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application with every route of the HTTP port. `extra_routes` are those of the ingresses, which check
    access themselves."""
    routes = [route for each in (calls, playback, events) for route in each.routes(context)]
    app = create_operator_app(context, [*routes, *extra_routes, *page.routes(context)])
    if origins := context.settings.http.cors_origins:
        # A page must know the key and send it in a header. There are no cookies, so a page of another site cannot act
        # with a user's credentials.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Last-Event-ID"],
            expose_headers=["Retry-After", "WWW-Authenticate", "Content-Disposition"],
            max_age=600,
        )
    return app


def create_operator_app(context: OperatorContext, more_routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return an application with `/healthz`, `/readyz`, `/metrics` and these routes."""
    routes = [*health.routes(context), *more_routes]
    errors = (Problem, HTTPException, StoreError, OwnerAway, ClientDisconnect, Exception)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(errors, _answer))
    app.router.redirect_slashes = False
    app.router.default = _Unrouted({route.path for route in routes if isinstance(route, WebSocketRoute)})
    return app


async def _answer(connection: HTTPConnection, error: Exception) -> Response:
    """To an error that ends a request, in OpenAI's form where its clients look for it."""
    path = connection.url.path
    return problem_of(path, error).response(openai=path.startswith(OPENAI))


class _Unrouted:
    """Answers requests without a route: 426 for a plain request to the path of a WebSocket (RFC 9110 section 15.5.22),
    and 404 for any other path."""

    def __init__(self, sockets: Collection[str]) -> None:
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in self._sockets:
            headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
            raise Problem(426, "this is a WebSocket: ask for an upgrade", headers=headers)
        raise HTTPException(404, "no such route")
