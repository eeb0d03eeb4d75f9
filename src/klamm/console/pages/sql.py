"""SQL over topics, with a chart: DuckDB in a child process. Queries are kept as files beside the store.

    events/            the store
    events.queries/    NAME.sql, one query each; the console writes them only with --allow-changes

What a visitor asks for can read topics and nothing else: DuckDB opens no file, not even one for what does not fit
into memory, loads nothing, and its settings are locked. It has MEMORY and TIMEOUT_S. With --mask there is no SQL: a
query could show what is masked.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from klamm.charts import line_chart
from klamm.console import text
from klamm.console.child import run_child
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.pages.frame import Page, bar, cell, note, table
from klamm.console.pages.produce import check_changes
from klamm.errors import NotInstalled
from klamm.html import Html, el, exact, join
from klamm.times import parse_time

__all__ = ["SQL", "save_query"]

MEMORY = 512 << 20  # that DuckDB may have; the process may map eight times that
TIMEOUT_S = 30.0
_MOST_ROWS = 1_000
_MOST_QUERIES = 200
_MOST_QUERY = 20_000  # bytes of one that is kept: it is asked by its text, in an address
_LIMITS = (
    f"SET memory_limit='{MEMORY >> 20}MiB'; SET threads=2; SET enable_progress_bar=false;"
    " SET temp_directory=''; SET enable_external_access=false; SET lock_configuration=true;\n"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,60}")


def queries_path(console: Console) -> Path:
    """Return the folder with the queries."""
    return Path(f"{os.path.abspath(console.store.path)}.queries")


def _kept(console: Console) -> dict[str, str]:
    folder = queries_path(console)
    if not folder.is_dir():
        return {}
    files = (file for file in sorted(folder.glob("*.sql"))[:_MOST_QUERIES] if file.is_file())
    return {file.stem: file.read_text(errors="replace") for file in files if file.stat().st_size <= _MOST_QUERY}


def check_mask(console: Console) -> None:
    if console.mask:
        raise RequestError(403, "there is no SQL in a console with --mask", "a query could show what is masked")


def read_sql(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the rows of a query, and the queries that are kept."""
    check_mask(console)
    query = visit.one("q")
    data: dict[str, Any] = {
        "query": query,
        "queries": _kept(console),
        "rows": None,
        "topics": list(console.store.topics),
        "install": _missing(),
    }
    if not query:
        return data
    if data["install"] is not None:
        raise NotInstalled("SQL needs DuckDB, which is not installed", name="duckdb", hint=data["install"])
    result = run_child(
        ["sql", _LIMITS + query, "--store", console.store.path, "--read-only", "-o", "json"],
        memory_bytes=8 * MEMORY,
        timeout_s=TIMEOUT_S,
        most_rows=_MOST_ROWS,
    )
    rows = [row for row in result.rows if isinstance(row, dict)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return {**data, "columns": columns, "rows": rows, "is_cut": result.is_cut, "took_ms": result.took_ms}


def _missing() -> str | None:
    """Return the command that installs what SQL needs; None if it is there."""
    return "pip install 'klamm[sql]'" if find_spec("duckdb") is None or find_spec("pyarrow") is None else None


_TITLE = el("h1", "SQL", el("small", "topics are tables; text(value) ->> '$.id' looks into JSON"))


def render_sql(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    kept = _kept_queries(data["queries"])
    parts: list[Html | None] = [
        _TITLE,
        kept if not visit.is_saved else None,
        el("pre", data["query"]) if visit.is_saved else _form(visit),
    ]
    if data["install"] is not None:
        sentence = ["SQL needs DuckDB, which is not installed: ", el("code", data["install"], class_="line")]
        return join([_TITLE, note(sentence)])
    if data["rows"] is not None:
        cut = f", the first {len(data['rows']):,}" if data["is_cut"] else ""
        summary = f"{text.count(len(data['rows']), 'row')}{cut} in {text.duration(data['took_ms'])}"
        parts += [
            el("div", el("span", summary), class_="bar"),
            _chart(data),
            _rows_table(data),
            _keep_form(console, visit, data),
        ]
    return join(parts)


def _kept_queries(queries: dict[str, str]) -> Html | None:
    links = [el("a", name, href=f"/sql?{urlencode({'q': query})}", class_="button") for name, query in queries.items()]
    return el("p", links, class_="actions") if links else None


def _form(visit: Visit) -> Html:
    hint = "select text(key), count(*) from orders group by 1 order by 2 desc"
    area = el("textarea", exact(visit.raw("q")), name="q", rows=3, spellcheck="false", placeholder=hint)
    return el(
        "form",
        el("label", el("span", "Query"), area),
        el("p", el("button", "Run", class_="primary"), class_="actions"),
        method="get",
        action="/sql",
        class_="stack query",
        data_filter=True,
    )


def _form_again(console: Console, visit: Visit) -> Html:
    check_mask(console)
    return join([_TITLE, _kept_queries(_kept(console)), _form(visit)])


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numeric(data: dict[str, Any], column: str) -> bool:
    values = [row.get(column) for row in data["rows"]]
    return any(value is not None for value in values) and all(
        value is None or _number(value) is not None for value in values
    )


def _time_ms(value: Any) -> int | None:
    return parse_time(value) if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d", value) else None


def _chart(data: dict[str, Any]) -> Html | None:
    """Return a line, if the first column is a time and the next are numbers."""
    columns, rows = data["columns"], data["rows"]
    series = [name for name in columns[1:3] if _numeric(data, name)]
    if len(rows) < 3 or not series:
        return None
    times = [_time_ms(row.get(columns[0])) for row in rows]
    if any(time_ms is None for time_ms in times):
        return None
    ordered = sorted(zip(times, rows, strict=True), key=lambda pair: pair[0] or 0)
    points = [(time_ms or 0, _number(row.get(series[0]))) for time_ms, row in ordered]
    second = [_number(row.get(series[1])) for _, row in ordered] if len(series) > 1 else ()
    names = ",".join(name.replace(",", " ") for name in series)
    return line_chart(points, label=f"{' and '.join(series)} over {columns[0]}", unit="", second=second, names=names)


def _rows_table(data: dict[str, Any]) -> Html:
    columns, rows = data["columns"], data["rows"]
    numeric = [_numeric(data, name) for name in columns]
    bars = next((at for at in range(1, len(columns)) if numeric[at]), None)
    most = 0.0
    if bars is not None:
        most = max((abs(_number(row.get(columns[bars])) or 0) for row in rows), default=0) or 1
    body = [
        el(
            "tr",
            [
                cell(_shown(row.get(name)), kind="n" if is_number else "mono")
                for name, is_number in zip(columns, numeric, strict=True)
            ],
            cell(
                bar(abs(_number(row.get(columns[bars])) or 0) / most, f"{columns[bars]} of row {number + 1}"),
                kind="fit",
            )
            if bars is not None
            else None,
            data_key=f"row {number}",
        )
        for number, row in enumerate(rows)
    ]
    marks = "".join("n" if is_number else " " for is_number in numeric)
    heads = [*columns, *([""] if bars is not None else [])]
    return table(heads, body, caption="Rows", empty="No rows.", numeric=marks)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.12g}"  # its JSON twin has all digits
    return value[:500] if isinstance(value, str) else str(value)[:500]


def _keep_form(console: Console, visit: Visit, data: dict[str, Any]) -> Html | None:
    if visit.is_saved or not console.options.allow_changes:
        return None
    return el(
        "form",
        el("input", type="hidden", name="csrf", value=visit.csrf),
        el("input", type="hidden", name="q", value=data["query"]),
        el("label", el("span", "Keep it as"), el("input", name="name", placeholder="orders by key")),
        el("span", el("button", "Keep"), class_="actions"),
        method="post",
        action="/sql",
        class_="filter after",
    )


def save_query(console: Console, form: Visit) -> str:
    """Write a query to a file; return the address that runs it."""
    check_changes(console)
    name, query = form.one("name"), form.one("q")
    if not _NAME.fullmatch(name) or not query:
        raise RequestError(400, f"name: {name!r} is invalid", "expected letters, digits, spaces, '.', '_' and '-'")
    if len(query.encode()) >= _MOST_QUERY:
        raise RequestError(400, f"the query has more than {_MOST_QUERY:,} bytes", "ask it by klamm sql")
    folder = queries_path(console)
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.sql"
    partial = folder / f".{name}.{os.getpid()}"
    partial.write_text(f"{query}\n")
    partial.replace(file)
    return f"/sql?{urlencode({'q': query})}"


SQL = Page(
    "/sql",
    title=lambda visit: "SQL",
    read=read_sql,
    render=render_sql,
    command=lambda console, visit: console.command("sql", visit.one("q") or "select 1"),
    on_error=_form_again,
)
