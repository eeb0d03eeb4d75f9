"""The application: routes, and what becomes of a request.

    /…            a page, as HTML
    /api/…        its JSON twin: the same values
    /events/…     a live page: its HTML again whenever it has changed, as server-sent events
    /static/…     the console's own files

Pages read the store in threads, so that one that takes long does not hold up the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from klamm.api.hints import hint_of
from klamm.console.context import Console, Visit
from klamm.console.downloads import TYPES, chunks, export_topic
from klamm.console.errors import RequestError
from klamm.console.pages.connections import CONNECTIONS
from klamm.console.pages.dead_letters import DEAD_LETTERS, LETTER, LETTERS, redrive, redrive_one
from klamm.console.pages.frame import STATIC, Page, frame, note
from klamm.console.pages.groups import GROUP, GROUPS, RESET, reset
from klamm.console.pages.heat_map import HEAT_MAP
from klamm.console.pages.life import LIFE
from klamm.console.pages.overview import OVERVIEW, TOPICS
from klamm.console.pages.pipelines import PIPELINE, PIPELINES
from klamm.console.pages.produce import PRODUCE, produce
from klamm.console.pages.purge import PURGE, purge
from klamm.console.pages.schema import SCHEMA
from klamm.console.pages.sql import SQL, save_query
from klamm.console.pages.topic import ABOUT, RECORD, TOPIC
from klamm.console.pages.transactions import TRANSACTIONS, abort
from klamm.console.pages.trouble import TROUBLE
from klamm.console.passwords import is_password
from klamm.console.security import SESSION, Guard, Sessions
from klamm.console.tail import read_growth, tail_events
from klamm.errors import (
    BufferFull,
    Closed,
    CommitGap,
    DiskFull,
    GroupBusy,
    InvalidRecord,
    InvalidSetting,
    InvalidTopic,
    KlammError,
    NotInstalled,
    NotOwner,
    OffsetOutOfRange,
    ReadOnly,
    RecordTooLarge,
    StoreBusy,
    TopicExists,
    TransactionError,
    UnknownGroup,
    UnknownTopic,
    Unreachable,
    Unsupported,
)
from klamm.html import Html, el, join

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

__all__ = ["ACTIONS", "PAGES", "create_app"]

PAGES: tuple[Page, ...] = (
    *(OVERVIEW, TOPICS, ABOUT, SCHEMA, HEAT_MAP, PRODUCE, PURGE, TOPIC, RECORD),
    *(GROUPS, GROUP, RESET, TRANSACTIONS, DEAD_LETTERS, LETTERS, LETTER, TROUBLE),
    *(CONNECTIONS, SQL, PIPELINES, PIPELINE, LIFE),
)
ACTIONS: dict[str, tuple[Page, Callable[[Console, Visit], str]]] = {
    "/topics/{topic}/produce": (PRODUCE, produce),
    "/topics/{topic}/purge": (PURGE, purge),
    "/groups/reset": (RESET, reset),
    "/transactions": (TRANSACTIONS, abort),
    "/sql": (SQL, save_query),
    "/dead-letters/{topic}": (LETTERS, redrive),
    "/dead-letters/{topic}/{partition}/{offset}": (LETTER, redrive_one),
}
"""What forms do: the page they are on, and a function that returns the address to go to."""

THEME = "klamm_theme"
_MAX_BODY = 8 << 20
_MAX_LOGIN = 4 << 10
_LIVE_S = 2.0
_KEEP_ALIVE_S = 15.0
_STATUSES: tuple[tuple[int, tuple[type[KlammError], ...]], ...] = (
    (400, (InvalidSetting, InvalidTopic, InvalidRecord, RecordTooLarge)),
    (403, (ReadOnly,)),
    (404, (UnknownTopic, UnknownGroup, OffsetOutOfRange)),
    (409, (GroupBusy, TopicExists, NotOwner, CommitGap, TransactionError)),
    (501, (NotInstalled, Unsupported)),
    (503, (StoreBusy, Unreachable, Closed, DiskFull, BufferFull)),
)
"""What is not among them is 500: damage, or a mistake of ours."""


def create_app(console: Console) -> ASGIApp:
    """Return the application, with the checks of security.py in front of it."""
    return _App(console).guarded()


class _App:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._sessions = Sessions()
        routes = [Route("/login", self._login, methods=["GET", "POST"]), Route("/theme/{theme}", self._theme)]
        routes += [Route("/topics/{topic}/export", self._export), Route("/events/topics/{topic}/tail", self._tail)]
        routes += [Route(path, self._action(*action), methods=["POST"]) for path, action in ACTIONS.items()]
        for page in PAGES:
            routes += [Route(page.path, self._html(page)), Route(page.api_path, self._json(page))]
            if page.is_live:
                routes.append(Route(_events_path(page), self._events(page)))
        handlers: dict[Any, Any] = {404: self._not_found, Exception: self._unexpected}
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.mount("/static", StaticFiles(directory=STATIC), name="static")
        check = partial(is_password, console.store)
        self._guard = Guard(app, console.options, self._sessions, check)

    def guarded(self) -> ASGIApp:
        return self._guard

    def _visit(self, request: Request) -> Visit:
        theme = request.cookies.get(THEME, "")
        return Visit(
            request.url.path,
            dict(request.path_params),
            parse_qs(request.url.query, keep_blank_values=True),
            self._sessions.csrf_token(request.state.session),
            theme if theme in ("dark", "light") else "",
            request.query_params.get("save") == "1",
        )

    # ---- pages

    def _html(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            visit = self._visit(request)
            return await run_in_threadpool(self._respond, page, visit)

        return respond

    def _respond(self, page: Page, visit: Visit) -> Response:
        console = self._console
        try:
            body, status = page.render(console, visit, page.read(console, visit)), 200
        except (RequestError, KlammError, OSError) as error:
            body, status = self._failed(page, visit, error)
        return self._framed(page, visit, body, status)

    def _failed(self, page: Page, visit: Visit, error: Exception) -> tuple[Html, int]:
        """Return the page of an error, with the form that led to it where the page has one, and its status."""
        if page.on_error is not None:
            with suppress(RequestError, KlammError, OSError):  # what the form is about is not there
                return join([page.on_error(self._console, visit), *_notes(error)]), _status(error)
        return _problem(error)

    def _framed(self, page: Page, visit: Visit, body: Html, status: int) -> Response:
        query = visit.address("")
        twin = page.api_path if page.path == "/" else f"/api{visit.path}"
        live = f"/events{visit.path}{query}" if page.is_live and status == 200 and not visit.is_saved else None
        text = frame(self._console, visit, page, body, title=page.title(visit), api=twin + query, live=live)
        headers = {}
        if visit.is_saved:
            name = quote(f"klamm{visit.path.replace('/', '-').rstrip('-')}.html")
            headers["content-disposition"] = f"attachment; filename*=UTF-8''{name}"
        return HTMLResponse(text, status, headers=headers)

    def _action(self, page: Page, run: Callable[[Console, Visit], str]) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a form: carry it out, and send the visitor on to the address that it returns."""

        async def respond(request: Request) -> Response:
            visit = self._visit(request)
            try:
                form = await read_form(request, self._sessions)
                visit = replace(visit, query=form.query)
                address = await run_in_threadpool(run, self._console, form)
            except (RequestError, KlammError, OSError) as error:
                body, status = await run_in_threadpool(self._failed, page, visit, error)
                return await run_in_threadpool(self._framed, page, self._visit(request), body, status)
            return RedirectResponse(address, 303)

        return respond

    async def _export(self, request: Request) -> Response:
        visit = self._visit(request)
        try:
            file = await run_in_threadpool(export_topic, self._console, visit)
        except (RequestError, KlammError, OSError) as error:
            if "text/html" not in request.headers.get("accept", ""):
                return json_problem(error)
            visit = replace(visit, path=visit.path.removesuffix("/export"))
            body, status = await run_in_threadpool(self._failed, TOPIC, visit, error)
            return await run_in_threadpool(self._framed, TOPIC, visit, body, status)
        form = visit.one("format", "jsonl")
        name = quote(f"{visit.params['topic']}.{form}")
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
        return StreamingResponse(chunks(file), media_type=TYPES[form], headers=headers)

    async def _tail(self, request: Request) -> Response:
        visit = self._visit(request)
        try:
            await run_in_threadpool(read_growth, self._console, visit, None)
        except (RequestError, KlammError, OSError) as error:
            return json_problem(error)
        return event_stream(tail_events(self._console, visit, request))

    def _json(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            visit = self._visit(request)
            try:
                data = await run_in_threadpool(page.twin, self._console, visit)
            except (RequestError, KlammError, OSError) as error:
                return json_problem(error)
            return _Json({**data, "command": page.command(self._console, visit)})

        return respond

    def _events(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a live page: read and render it again, and send it if it has changed."""

        async def updates(request: Request) -> AsyncIterator[str]:
            visit = self._visit(request)
            visit = replace(visit, path=visit.path.removeprefix("/events"))  # its links lead to the page
            before, number, silent_s = "", 0, 0.0
            while not (self._console.is_ending.is_set() or await request.is_disconnected()):
                try:
                    data = await run_in_threadpool(page.read, self._console, visit)
                    body = page.render(self._console, visit, data)
                except (RequestError, KlammError, OSError) as error:
                    body, _ = _problem(error)
                digest = hashlib.sha256(body.encode()).hexdigest()
                silent_s += _LIVE_S
                if digest != before:
                    before, number, silent_s = digest, number + 1, 0.0
                    yield f"id: {number}\nevent: page\ndata: {json.dumps(body)}\n\n"
                elif silent_s >= _KEEP_ALIVE_S:
                    silent_s = 0.0
                    yield ": still here\n\n"
                await self._console.pause(_LIVE_S)

        async def respond(request: Request) -> Response:
            return event_stream(updates(request))

        return respond

    async def _not_found(self, request: Request, error: Exception) -> Response:
        visit = self._visit(request)
        if visit.path.startswith(("/api/", "/events/")):
            return json_problem(RequestError(404, f"{visit.path}: there is no such view"))
        body, status = _problem(
            RequestError(404, f"{visit.path}: there is no such view", "the menu has those that exist")
        )
        title = "Not found"
        text = frame(self._console, visit, OVERVIEW, body, title=title, api=OVERVIEW.api_path, live=None)
        return HTMLResponse(text, status)

    async def _unexpected(self, request: Request, error: Exception) -> Response:
        """Return the page of an error that no page expects; it is raised again, and so logged."""
        problem = RequestError(
            500,
            f"{type(error).__name__}: {error}",
            "this is a mistake in Klamm: report it, with what the console has written to stderr",
        )
        if request.url.path.startswith(("/api/", "/events/")):
            return json_problem(problem)
        body, status = _problem(problem)
        return await run_in_threadpool(self._framed, OVERVIEW, self._visit(request), body, status)

    # ---- the visitor

    async def _theme(self, request: Request) -> Response:
        """Remember the theme and go back to where the visitor was."""
        theme, back = request.path_params["theme"], request.query_params.get("back", "/")
        if not back.startswith("/") or back.startswith(("//", "/\\")):
            back = "/"
        response = RedirectResponse(back, 303)
        if theme in ("dark", "light"):
            response.set_cookie(THEME, theme, max_age=365 * 86_400, httponly=True, samesite="strict")
        return response

    async def _login(self, request: Request) -> Response:
        visit = self._visit(request)
        problem, status, has_users = None, 200, self._console.options.has_users
        if (token := request.query_params.get("token")) and self._guard.is_token(token):
            return self._logged_in()
        if request.method == "POST":
            try:
                form = await read_form(request, self._sessions, most_bytes=_MAX_LOGIN)
                if await self._is_login(form):
                    return self._logged_in()
                self._guard.log_failed_login(request.scope)
                wrong, status = "No user has this name and password.", 403
                if not has_users:
                    wrong = "This is not the console's token."
            except RequestError as error:
                wrong, status = f"{error.problem}: {error.hint}" if error.hint else error.problem, error.status
            problem = note(wrong, kind="bad")
        form_html = el(
            "form",
            el("h1", "Klamm console"),
            problem,
            _login_fields(has_users),
            el("input", type="hidden", name="csrf", value=visit.csrf),
            el("button", "Log in", class_="primary"),
            method="post",
            action="/login",
            class_="login",
        )
        style = el("link", rel="stylesheet", href="/static/console.css")
        head = el("head", el("meta", charset="utf-8"), el("title", "Log in · Klamm"), style)
        page = el("html", head, el("body", el("main", form_html)), lang="en", data_theme=visit.theme or None)
        return HTMLResponse(f"<!doctype html>\n{page}", status)

    def _logged_in(self) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(SESSION, self._sessions.create(is_logged_in=True), httponly=True, samesite="strict")
        return response

    async def _is_login(self, form: Visit) -> bool:
        is_token = self._guard.is_token(form.one("token"))
        return is_token or await self._guard.is_user(form.one("user"), form.raw("password"))


def _login_fields(has_users: bool) -> list[Html]:
    password = {"type": "password", "autocomplete": "current-password"}
    if not has_users:
        return [el("label", el("span", "Token"), el("input", name="token", autofocus=True, **password))]
    user = el("input", name="user", autocomplete="username", autofocus=True)
    return [
        el("label", el("span", "User"), user),
        el("label", el("span", "Password"), el("input", name="password", **password)),
    ]


def _events_path(page: Page) -> str:
    return "/events/" if page.path == "/" else f"/events{page.path}"


def event_stream(events: AsyncIterator[str]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


# ---- forms and problems


async def read_form(request: Request, sessions: Sessions, *, most_bytes: int = _MAX_BODY) -> Visit:
    """Return the fields of a form that was sent, as a visit. RequestError if the CSRF token is not the session's."""
    import hmac

    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise RequestError(413, f"the form has more than {most_bytes:,} bytes")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise RequestError(400, f"the form cannot be read: {error}") from None
    expected = sessions.csrf_token(request.state.session)
    if not hmac.compare_digest(expected.encode(), fields.get("csrf", [""])[-1].encode()):
        raise RequestError(403, "the form is out of date, or comes from another site", "load the page again")
    return Visit(request.url.path, dict(request.path_params), fields, expected)


def _status(error: Exception) -> int:
    if isinstance(error, RequestError):
        return error.status
    return next((status for status, errors in _STATUSES if isinstance(error, errors)), 500)


def _said(error: Exception) -> tuple[str, str]:
    if isinstance(error, RequestError):
        return error.problem, error.hint
    if isinstance(error, KlammError):
        return error.message, hint_of(error) or ""
    return f"{type(error).__name__}: {error}", ""


def _problem(error: Exception) -> tuple[Html, int]:
    """Return the page of an error, and its status."""
    return join([el("h1", "That did not work"), *_notes(error)]), _status(error)


def _notes(error: Exception) -> list[Html]:
    problem, hint = _said(error)
    return [note(problem, kind="bad"), *([el("p", hint)] if hint else [])]


def json_problem(error: Exception) -> Response:
    problem, hint = _said(error)
    return _Json({"error": problem, "hint": hint or None}, _status(error))


class _Json(JSONResponse):
    """JSON in UTF-8. Half of a surrogate pair, which a record's JSON can have, is escaped as it was there."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")
