"""The console in a real browser: what a person sees, types and clicks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import axe_core_python

import klamm
from tests.browser.conftest import HOSTILE, LARGE, MANY, STRANGE, Tab
from tests.console import content
from tests.console.process import ConsoleProcess

VIEWS = {
    "overview": "/",
    "topics": "/topics",
    "records": "/topics/orders?n=20",
    "record": "/topics/orders/0/1",
    "columns": "/topics/orders?view=columns&n=20",
    "schema": "/topics/orders/schema",
    "heat map": "/topics/orders/heat",
    "purge": "/topics/orders/purge?before=%405",
    "about": "/topics/orders/about",
    "produce": "/topics/orders/produce",
    "groups": "/groups",
    "group": "/groups/show?group=billing",
    "reset": "/groups/reset?group=mails&to=earliest",
    "dead letters": "/dead-letters",
    "letters": "/dead-letters/orders.dlq?plan=1&rate=5",
    "letter": "/dead-letters/orders.dlq/0/0",
    "strange values": "/topics/hostile",
    "sql": "/sql?q=select+partition,+count(*)+as+n+from+orders+group+by+1+order+by+1",
    "life": "/life",
    **content.VIEWS,
}
AXE = Path(axe_core_python.__file__).with_name("axe.min.js").read_text()


ALL_RULES = "axe.run(document, {resultTypes: ['violations']})"
WIDTH = "document.documentElement.scrollWidth"
CONTRAST = "axe.run(document, {resultTypes: ['violations'], runOnly: {type: 'rule', values: ['color-contrast']}})"


def test_every_view_is_accessible_in_both_themes_and_fits_a_small_window(browser: Any, served: ConsoleProcess) -> None:
    """axe has no serious finding (labels, roles, focus; contrast in both themes, in either window), and nothing scrolls
    sideways.
    """
    tab = Tab(browser, served.address, color_scheme="light", bypass_csp=True)
    try:
        tab.context.add_init_script(AXE)
        findings = {}
        for name, address in VIEWS.items():
            page = tab.goto(address)
            if name == "connections":  # with the requests of one
                page.click("tbody td.name a")
                page.wait_for_url("**/connections?peer=*")
            if name in content.VIEWS:
                assert page.locator("main .empty").count() == 0, f"{name}: {page.inner_text('main')}"
            violations = page.evaluate(ALL_RULES)["violations"]
            page.emulate_media(color_scheme="dark")
            violations += page.evaluate(CONTRAST)["violations"]
            page.set_viewport_size({"width": 390, "height": 800})
            widths = [page.evaluate(WIDTH)]
            violations += page.evaluate(CONTRAST)["violations"]
            page.emulate_media(color_scheme="light")
            widths.append(page.evaluate(WIDTH))
            violations += page.evaluate(CONTRAST)["violations"]
            page.set_viewport_size({"width": 1280, "height": 900})
            found = [
                (each["id"], [node["html"][:200] for node in each["nodes"]])
                for each in violations
                if each["impact"] in ("serious", "critical")
            ]
            if max(widths) > 390:
                found.append(("scrolls sideways, dark and light", [str(width) for width in widths]))
            if found:
                findings[name] = found
        assert findings == {} and tab.errors == []
    finally:
        tab.close()


def test_a_theme_is_chosen_and_stays(tab: Tab) -> None:
    page = tab.goto("/topics")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme-link")
    page.wait_for_url("**/topics")
    dark = page.evaluate(background)
    assert light != dark and page.get_attribute("html", "data-theme") == "dark"
    assert tab.goto("/groups").evaluate(background) == dark
    page.click("#theme-link")
    page.wait_for_url("**/groups")
    assert page.evaluate(background) == light


def test_the_overview_changes_while_it_is_looked_at(tab: Tab, store: klamm.Store) -> None:
    page = tab.goto("/")
    assert page.locator("tr[data-key='topic fresh']").count() == 0
    store.topics.create("fresh")
    store.append("fresh", b"x", acks=1)
    page.wait_for_selector("tr[data-key='topic fresh']")
    page.wait_for_selector(".chart canvas")


def test_links_of_a_page_that_was_sent_again_lead_to_pages(tab: Tab, store: klamm.Store) -> None:
    page = tab.goto("/groups/show?group=billing")
    page.wait_for_selector("#live[data-updates]")
    page.click("a:text-is('6h')")
    page.wait_for_url("**/groups/show?group=billing&span=6h")
    assert "/events/" not in page.url and page.locator("a[aria-current]:text-is('6h')").count() == 1


def test_the_keyboard_leads_through_the_console(tab: Tab) -> None:
    page = tab.goto("/topics")
    page.keyboard.press("j")
    first = page.get_attribute("tr.chosen", "data-key")
    page.keyboard.press("j")
    second = page.get_attribute("tr.chosen", "data-key")
    page.keyboard.press("k")
    assert page.get_attribute("tr.chosen", "data-key") == first != second
    page.keyboard.press("?")
    assert page.locator("dialog[open]").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/topics/[\w.]+$"))
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "from"
    page.keyboard.type("jk?")
    assert page.evaluate("document.activeElement.value") == "jk?"
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    page.wait_for_url("**/produce")
    page.keyboard.press("g")
    page.wait_for_url("**/groups")
    page.keyboard.press("o")
    page.wait_for_url(tab.base + "/")


def test_a_topic_is_followed_and_paused(tab: Tab, store: klamm.Store) -> None:
    store.topics.create("followed")
    store.append("followed", b"before", acks=1)
    page = tab.goto("/topics/followed")
    page.keyboard.press("t")
    page.wait_for_selector("#live[data-tailing]")
    store.append("followed", HOSTILE.encode(), acks=1)
    page.wait_for_selector("tr[data-key='record 0/1']")
    assert page.locator(".records tbody tr").first.get_attribute("data-key") == "record 0/1"
    page.keyboard.press("t")
    assert page.get_attribute("#tail", "aria-pressed") == "false"
    store.append("followed", b"while paused", acks=1)
    page.wait_for_selector("#tail-state:has-text('paused: 1 more came')")
    assert page.locator(".records tbody tr").count() == 2
    page.keyboard.press("t")
    page.wait_for_selector("tr[data-key='record 0/2']")
    assert page.locator(".records tbody tr").count() == 3
    assert page.evaluate("window.hacked") is None


def test_following_a_fast_topic_says_that_it_shows_a_sample(tab: Tab, store: klamm.Store) -> None:
    store.topics.create("fast")
    store.append("fast", b"before", acks=1)
    page = tab.goto("/topics/fast")
    page.click("#tail")
    page.wait_for_selector("#live[data-tailing]")
    store.append_many("fast", [(None, b"%d" % n) for n in range(5_000)], acks=1)
    page.wait_for_selector("#tail-state:has-text('a sample: 4,900 not shown')")
    assert page.locator(".records tbody tr").count() == 101


def test_a_search_in_a_million_records_goes_on_until_everything_was_scanned(tab: Tab) -> None:
    page = tab.goto("/topics/many?key=rare")
    page.wait_for_selector(f"#scanned:has-text('{MANY:,}')")
    page.wait_for_selector("tr[data-key='record 0/7']")
    assert page.locator(".records tbody tr").count() == 1
    assert page.locator("#stop").is_hidden()


def test_a_search_stops_when_it_is_told_to(tab: Tab) -> None:
    """The second step is held back until the button was pressed, however fast the machine is."""
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    tab.page.route("**/topics/many?key=nothing&at=*", hold)
    page = tab.goto("/topics/many?key=nothing")
    page.wait_for_selector("#stop:not([hidden])")
    page.click("#stop")
    while not held:
        page.wait_for_timeout(10)
    held[0].continue_()
    page.wait_for_selector("#live[data-searched=stopped]")
    assert len(held) == 1 and page.locator("#stop").is_hidden()


def test_dragging_over_the_timeline_jumps_to_that_time(tab: Tab) -> None:
    page = tab.goto("/topics/orders?partition=0&view=text")
    box = page.locator("#timeline .u-over").bounding_box()
    assert box is not None
    middle, height = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(middle, height)
    page.mouse.down()
    page.mouse.move(middle + 60, height, steps=3)
    page.mouse.up()
    page.wait_for_url("**from=*")
    address = page.url
    assert "partition=0" in address and "view=text" in address
    times = page.locator(".records tbody tr td:first-child").all_inner_texts()
    assert times == sorted(times) and times[0] >= page.input_value("input[name=from]")[:19]
    assert page.locator("tr[data-key='record 0/0']").count() == 0


def test_records_are_deleted_after_a_look_at_them(tab: Tab, store: klamm.Store) -> None:
    store.topics.create("purged")
    store.append_many("purged", [(None, b"%d" % n) for n in range(10)], acks=1)
    page = tab.goto("/topics/purged/purge")
    page.fill("input[name=before]", "@7")
    page.click("form.filter button")
    page.wait_for_selector("#apply:has-text('Delete 7 records')")
    assert store["purged"].info().count == 10
    page.click("#apply")
    page.wait_for_url("**/topics/purged")
    assert [record.value for record in store.tail("purged", 99)] == [b"7", b"8", b"9"]


def test_a_form_filters_by_json_path(tab: Tab) -> None:
    page = tab.goto("/topics/orders")
    page.fill("input[name=where]", "$.user.id = 6")
    page.fill("input[name=n]", "5")
    page.click("button.primary")
    page.wait_for_url("**where=*")
    values = page.locator(".records summary").all_inner_texts()
    assert len(values) >= 5 and all('"id": 6' in value for value in values if value.startswith("{"))
    assert "--where '$.user.id = 6'" in page.inner_text("#line")


def test_a_record_is_produced_and_sent_again_with_a_change(tab: Tab, store: klamm.Store) -> None:
    store.topics.create("produced")
    page = tab.goto("/topics/produced/produce")
    page.fill("input[name=key]", "k1")
    page.fill("textarea[name=value]", '{"a": "<b>"}')
    page.click("button.primary")
    page.wait_for_url("**/topics/produced/0/0")
    assert 'a: "<b>"' in page.inner_text("main")
    page.click("#produce-link")
    page.wait_for_url("**/produce?like=*")
    page.fill("textarea[name=value]", '{"a": 2}')
    page.click("button.primary")
    page.wait_for_url("**/topics/produced/0/1")
    assert [(record.key, record.value) for record in store.tail("produced", 9)] == [
        (b"k1", b'{"a": "<b>"}'),
        (b"k1", b'{"a": 2}'),
    ]


def test_a_value_that_begins_with_a_newline_and_has_joined_emoji_is_sent_again_as_it_is(
    tab: Tab, store: klamm.Store
) -> None:
    value = "\n\U0001f468\u200d\U0001f469 \u05d0\u200f\n\n".encode()
    store.topics.create("exact")
    store.append("exact", value, key=b" k ", acks=1)
    page = tab.goto("/topics/exact/produce?like=0/0")
    page.click("button.primary")
    page.wait_for_url("**/topics/exact/0/1")
    assert [(record.key, record.value) for record in store.tail("exact", 9)] == [(b" k ", value)] * 2


def test_a_query_that_fails_can_be_corrected(tab: Tab) -> None:
    page = tab.goto("/sql")
    page.fill("textarea[name=q]", "selct 1 as one")
    page.click("button.primary")
    page.wait_for_selector("[role=alert]")
    tab.errors.clear()  # the browser logs the status 400
    assert page.input_value("textarea[name=q]") == "selct 1 as one"
    page.fill("textarea[name=q]", "select 1 as one")
    page.click("button.primary")
    page.wait_for_selector("tr[data-key='row 0']")


def test_a_group_is_moved_after_a_look_at_what_that_means(tab: Tab, store: klamm.Store) -> None:
    store.groups.reset("moved", "orders", to="latest")
    page = tab.goto("/groups/reset?group=moved")
    page.fill("input[name=to]", "earliest")
    page.click("button.primary")
    page.wait_for_selector("#apply")
    assert "120" in page.inner_text(".cards")
    assert store.groups.describe("moved").lag == 0
    page.click("#apply")
    page.wait_for_url("**/groups/show?group=moved")
    assert store.groups.describe("moved").lag == 120


def test_dead_letters_are_put_back(tab: Tab, store: klamm.Store) -> None:
    store.topics.create("broken")
    store.append_many("broken", [b"x", b"y"], acks=1)

    def fail(record: klamm.Record) -> None:
        raise KeyError("nothing")

    with store.consumer("broken", group="failing", wait=0) as consumer:
        consumer.run(fail, workers=1, retries=0, on_error="dead-letter")
    page = tab.goto("/dead-letters/broken.dlq")
    assert "KeyError" in page.inner_text("table")
    page.fill("input[name=limit]", "1")
    page.click("#plan")
    page.wait_for_selector("#redrive:has-text('Put back 1 letter')")
    assert store["broken"].info().count == 2
    page.click("#redrive")
    page.wait_for_selector("text=has put back 1 of 1 letter")
    page.click("tr[data-key='letter 0/1'] a")
    page.fill("textarea[name=value]", "mended")
    page.click("#redrive")
    page.wait_for_selector("text=No dead letters")
    assert [record.value for record in store.tail("broken", 9)] == [b"x", b"y", b"x", b"mended"]


def test_a_query_is_run_kept_and_run_again(tab: Tab, store: klamm.Store) -> None:
    page = tab.goto("/sql")
    page.fill("textarea[name=q]", "select partition, count(*) as n from orders group by 1 order by 1")
    page.click("button.primary")
    page.wait_for_selector("tr[data-key='row 1']")
    page.fill("input[name=name]", "by partition")
    page.click("form.after button")
    page.wait_for_selector("a.button:has-text('by partition')")
    assert Path(f"{store.path}.queries/by partition.sql").is_file()


def test_the_board_of_life_changes_while_it_is_looked_at(tab: Tab, store: klamm.Store) -> None:
    page = tab.goto("/life")
    before = page.get_attribute(".board path", "d")
    store.append("life", b"1 born", key=b"9,9", acks=1)
    page.wait_for_function("before => document.querySelector('.board path').getAttribute('d') !== before", arg=before)


def test_a_saved_page_opens_from_disk(tab: Tab, tmp_path: Path) -> None:
    page = tab.goto("/topics/orders?n=5")
    with page.expect_download() as download:
        page.click("footer a[download]")
    file = tmp_path / "saved.html"
    download.value.save_as(file)
    page.goto(file.as_uri())
    assert page.locator(".records tbody tr").count() == 5
    assert page.evaluate("getComputedStyle(document.querySelector('table')).borderCollapse") == "collapse"
    assert "klamm tail orders -n 5" in page.inner_text("footer")
    assert page.locator("form, nav, a[href]:not(.skip)").count() == 0, "from a file they lead nowhere"


def test_hostile_values_do_nothing(tab: Tab) -> None:
    for address in (
        "/topics/hostile",
        "/topics/hostile/0/0",
        "/topics/hostile/produce?like=0/0",
        "/dead-letters/orders.dlq",
    ):
        page = tab.goto(address)
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main script").count() == 0
    assert HOSTILE in tab.goto("/topics/hostile").locator(".records summary").last.inner_text()


def test_strange_values_are_shown_as_what_they_are(tab: Tab) -> None:
    """A megabyte, bytes that are not text, control characters, text that runs to the left, JSON that is too deep."""
    page = tab.goto("/topics/hostile?n=20")
    assert page.locator(".records tbody tr").count() == 1 + len(STRANGE)
    assert page.evaluate("document.documentElement.outerHTML.length") < 250_000, "a list holds no large value whole"
    shown = page.inner_text(".records")
    assert "ff fe 80 20 c3 28" in shown and "\\u202egnp.exe" in shown and "tombstone" in shown
    assert not set("\x00\x07\x08\x1b\u202e\u200b") & set(page.content())
    for offset in range(1, 1 + len(STRANGE)):
        page = tab.goto(f"/topics/hostile/0/{offset}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, offset
    large = 1 + list(STRANGE).index(b"megabyte")
    assert len(tab.goto(f"/topics/hostile/0/{large}").inner_text(".json")) > len(LARGE) - 100
    assert "\\u001b[31mred" in tab.goto("/topics/hostile/0/3?view=text").inner_text("main pre")


def test_a_thousand_topics(browser: Any, tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        for number in range(1000):
            store.topics.create(f"topic-{number:04}")
        store.append("topic-0999", b"x", acks=1)
        console = ConsoleProcess(store.path)
        tab = Tab(browser, console.address)
        try:
            page = tab.goto("/")
            assert page.locator("tr[data-key^='topic topic-']").count() == 20
            assert page.locator("tr[data-key='topic topic-0999']").count() == 1, "the one with a record"
            page.click("a:text-is('All 1,000 topics')")
            page.wait_for_url("**/topics")
            assert page.locator("tr[data-key^='topic topic-']").count() == 1000
            page.wait_for_selector("#live[data-updates]")
            page.keyboard.press("/")
            page.keyboard.type("-099")
            page.keyboard.press("Enter")
            page.wait_for_url("**/topics?q=-099")
            assert page.locator("tr[data-key^='topic topic-']").count() == 10
            page.keyboard.press("k")
            assert page.get_attribute("tr.chosen", "data-key") == "topic topic-0999"
            page.keyboard.press("Enter")
            page.wait_for_url("**/topics/topic-0999")
            assert tab.errors == []
        finally:
            tab.close()
            console.close()


def test_everything_can_be_read_without_script(browser: Any, served: ConsoleProcess) -> None:
    tab = Tab(browser, served.address, java_script_enabled=False)
    try:
        page = tab.goto("/topics/orders?n=3")
        page.locator(".records tbody tr").nth(2).wait_for()
        assert page.locator(".records tbody tr").count() == 3
        page.click("#more")
        page.wait_for_url("**at=*")
        assert page.locator(".records tbody tr").count() == 3
        page.fill("input[name=key]", "k1")
        page.click("button.primary")
        page.wait_for_url("**key=k1*")
        assert page.locator(".records tbody tr").count() == 3
        page.locator(".records summary").first.click()
        assert page.locator(".records details[open]").count() >= 1
        assert tab.goto("/").locator("table").count() >= 3
        page.click("#help-link")
        assert page.locator("dialog").is_visible()
    finally:
        tab.close()
