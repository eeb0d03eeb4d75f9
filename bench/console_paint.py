"""How long after a key is pressed does the page show it, while 10,000 records a second come in and are followed?

Chromium shows a topic and follows it. A key is pressed that chooses the next row; the figure is the 95th percentile of
the time from the event to the frame after it. Beside it: the same page while nothing comes in.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

import _harness as harness
import klamm
from console_load import Console, make

FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
MEASURE = """() => {
  window.paints = [];
  document.addEventListener("keydown", (event) => {
    requestAnimationFrame(() => requestAnimationFrame(() => window.paints.push(performance.now() - event.timeStamp)));
  }, true);
}"""
WRITER = """
import sys, time, klamm
with klamm.open(sys.argv[1]) as store:
    records = [(None, b'{"n": 1, "text": "some record of a usual size, as JSON"}')] * 100
    due = time.perf_counter()
    while True:
        store.append_many("t", records, acks=1)
        due += 0.01
        time.sleep(max(0, due - time.perf_counter()))
"""


def main() -> None:
    options = harness.arguments(__doc__.splitlines()[0], rounds=5, keys=(60, "that are pressed"))
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("console_paint: Debian's chromium is not installed (make tools installs it)")
    from playwright.sync_api import sync_playwright

    keys = 5 if options.quick else options.keys
    with harness.folder() as path, sync_playwright() as playwright:
        make(f"{path}/s")
        with klamm.open(f"{path}/s") as store:
            store.append_many("t", [(None, b"%d" % n) for n in range(1000)], acks=1)
        console = Console(f"{path}/s")
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))

        def pressed(is_busy: bool) -> float:
            writer = subprocess.Popen([sys.executable, "-c", WRITER, f"{path}/s"]) if is_busy else None
            page = browser.new_page()
            try:
                page.goto(f"http://127.0.0.1:{console.port}/topics/t")
                page.click("#tail")
                page.wait_for_selector("#live[data-tailing]", state="attached")
                if is_busy:
                    page.wait_for_selector("#live[data-tailed]", state="attached")
                page.evaluate(MEASURE)
                for _ in range(keys):
                    page.keyboard.press("j")
                    time.sleep(0.1)
                page.wait_for_function(f"window.paints.length >= {keys}")
                return harness.percentile(page.evaluate("window.paints"), 95)
            finally:
                page.close()
                if writer is not None:
                    writer.kill()
                    writer.wait()

        try:
            found = harness.interleave({"busy": lambda: pressed(True), "quiet": lambda: pressed(False)}, options.rounds)
        finally:
            browser.close()
            console.close()
    harness.answer(
        "from a key to the frame, at 10,000 records/s followed",
        found["busy"],
        "the same page while nothing comes",
        found["quiet"],
        harness.at_most(200, "figure"),
        unit="ms",
        count=keys,
    )


if __name__ == "__main__":
    main()
