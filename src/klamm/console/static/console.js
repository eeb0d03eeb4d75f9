// The console's script. Everything can be read without it; it adds the keyboard, live parts, and charts.
"use strict";

const live = document.getElementById("live");
const typing = (element) => element && /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
const byId = (id) => document.getElementById(id);

// ---- the keyboard

let chosen = null; // data-key of the row that is chosen: a live page replaces its rows

function rows() {
  return [...live.querySelectorAll("tbody tr[data-key]")];
}

function choose(row, scroll = true) {
  for (const other of live.querySelectorAll("tr.chosen")) {
    other.classList.remove("chosen");
    other.removeAttribute("aria-selected");
  }
  chosen = row ? row.dataset.key : null;
  if (!row) return;
  row.classList.add("chosen");
  if (scroll) row.scrollIntoView({ block: "nearest" });
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.dataset.key === chosen);
  choose(all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))]);
}

function showHelp() {
  const dialog = document.querySelector("#help dialog");
  if (dialog && !dialog.open) dialog.showModal();
}

function click(id) {
  const element = byId(id);
  if (element && !element.hidden) element.click();
  return Boolean(element);
}

const keys = {
  "/": () => { const filter = live.querySelector("[data-filter] input, form.filter input"); if (filter) { filter.focus(); filter.select(); } },
  "j": () => move(1),
  "k": () => move(-1),
  "t": () => click("tail") || click("tail-link"),
  "p": () => click("produce-link"),
  "o": () => { location.href = "/"; },
  "g": () => { location.href = "/groups"; },
  "?": showHelp,
  "Enter": () => {
    const row = rows().find((each) => each.dataset.key === chosen);
    const link = row && row.querySelector("a[href]");
    if (link) link.click();
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  if (typing(event.target)) return;
  const left = event.target.closest("dialog:not([open])"); // the focus leaves a closed dialog a moment later
  if (event.key === "Enter" && event.target !== document.body && event.target.id !== "content" && !left) return;
  if (document.querySelector("dialog[open]")) return;
  event.preventDefault();
  keys[event.key]();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && typing(event.target)) event.target.blur();
});
const helpLink = byId("help-link");
if (helpLink) helpLink.addEventListener("click", (event) => { event.preventDefault(); showHelp(); });

// ---- the command line

const copy = byId("copy");
if (copy && navigator.clipboard) {
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(byId("line").textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
}

// ---- charts: uPlot in place of the SVG, with axes and a cursor

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Steps of an axis in seconds: uPlot's own are decimal, which minutes and hours are not.
const DURATIONS = [0.001, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800, 2592000];

function short(number, unit) {
  if (number === null || number === undefined) return "–";
  if (unit === "s" && Math.abs(number) >= 60) {
    const [size, letter] = number >= 86400 ? [86400, "d"] : number >= 3600 ? [3600, "h"] : [60, "min"];
    return `${+(number / size).toFixed(1)} ${letter}`;
  }
  const steps = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [size, letter] of steps) if (Math.abs(number) >= size) return `${+(number / size).toFixed(1)}${letter}${unit}`;
  return `${+number.toFixed(1)}${unit}`;
}

// Times are in UTC, as everywhere in the console.
const utc = (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC");
const two = (number) => String(number).padStart(2, "0");
const clock = (at, length = 19) => iso(at).slice(0, length).replace("T", " ");

function iso(at) { // a record's timestamp may be any number
  const date = new Date(Math.floor(at * 1000 + 0.001));
  return Number.isNaN(date.getTime()) ? "–" : date.toISOString();
}

function ticks(_, splits, __, ___, step) {
  return splits.map((at, number) => {
    const day = utc(at), time = step < 1 ? clock(at, 23).slice(11) : step < 60 ? `${two(day.getHours())}:${two(day.getMinutes())}:${two(day.getSeconds())}` : `${two(day.getHours())}:${two(day.getMinutes())}`;
    if (step >= 86400) return `${two(day.getMonth() + 1)}-${two(day.getDate())}`;
    return step >= 3600 && (!number || !day.getHours()) ? `${two(day.getMonth() + 1)}-${two(day.getDate())} ${time}` : time;
  });
}

function draw() {
  if (typeof uPlot === "undefined") return;
  for (const place of live.querySelectorAll(".chart[data-chart]")) {
    const data = JSON.parse(place.dataset.chart);
    if (data[0].length < 2) continue;
    const unit = place.dataset.unit || "";
    const names = (place.dataset.names || "in,out").split(",");
    const axis = { space: 90, stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const series = [{ label: "at", value: (_, at) => at === null ? "" : clock(at) }, { label: names[0], stroke: color("--accent"), width: 1.6, points: { show: false }, value: (_, v) => short(v, unit) }];
    if (data.length > 2) series.push({ label: names[1], stroke: color("--second"), width: 1.6, dash: [4, 3], points: { show: false }, value: (_, v) => short(v, unit) });
    const marks = JSON.parse(place.dataset.marks || "[]");
    place.replaceChildren();
    if (place.dataset.jump !== undefined || place.classList.contains("timeline")) { drawTimeline(place, data, axis); continue; }
    new uPlot({
      width: Math.max(200, place.clientWidth - 24), height: 160, series, legend: { live: true },
      tzDate: utc, axes: [{ ...axis, values: ticks, size: 28 }, { ...axis, space: 26, size: 56, ...(unit === "s" ? { incrs: DURATIONS } : {}), values: (_, ticks) => ticks.map((tick) => short(tick, unit)) }],
      hooks: { drawClear: [(u) => drawMarks(u, marks)] },
      scales: { x: { range: (_, low, high) => [Math.min(low, high - 60), high] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    }, data, place);
  }
}

function drawMarks(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = color("--warn");
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.lineWidth = devicePixelRatio;
  for (const [at] of marks) {
    const x = Math.round(u.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

// ---- the timeline of a topic: drag over a stretch, or click, to read from there on

function drawTimeline(place, data, axis) {
  const moments = live.querySelector("nav.moments");
  if (moments) moments.hidden = true; // the axis says it
  const step = Number(place.dataset.step);
  const jump = (at) => { if (place.dataset.jump && iso(at) !== "–") location.href = place.dataset.jump + encodeURIComponent(iso(at)); };
  const end = data[0][data[0].length - 1] + step;
  const plot = new uPlot({
    width: Math.max(200, place.clientWidth - 24), height: 100, legend: { live: true }, tzDate: utc,
    series: [
      { label: "at", value: (_, at) => at === null ? "drag to jump" : clock(at) },
      { label: "records", stroke: color("--accent"), fill: color("--accent"), width: 0, points: { show: false },
        paths: uPlot.paths.bars({ size: [0.82, Infinity], align: 1 }), value: (_, v) => short(v, "") },
    ],
    axes: [{ ...axis, values: ticks, size: 28 }, { ...axis, space: 30, size: 48, values: (_, ticks) => ticks.map((tick) => short(tick, "")) }],
    scales: { x: { range: () => [data[0][0], end] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
    cursor: { y: false, drag: { x: true, y: false, setScale: false } },
    hooks: { setSelect: [(u) => { if (u.select.width > 3) jump(u.posToVal(u.select.left, "x")); }] },
  }, data, place);
  plot.over.addEventListener("click", (event) => {
    const at = plot.posToVal(event.clientX - plot.over.getBoundingClientRect().left, "x");
    if (plot.select.width <= 3) jump(data[0][0] + Math.floor((at - data[0][0]) / step) * step);
  });
}

// ---- live pages: the server sends the page's HTML again when it has changed

function follow(address) {
  const events = new EventSource(address);
  events.addEventListener("page", (event) => {
    const focused = document.activeElement;
    if (typing(focused) && live.contains(focused)) return; // not under the visitor's fingers
    if ([...live.querySelectorAll("input:not([type=hidden]), textarea")].some((each) => each.value !== each.defaultValue)) return;
    const href = live.contains(focused) ? focused.getAttribute("href") : null;
    live.innerHTML = JSON.parse(event.data);
    live.dataset.updates = String(Number(live.dataset.updates || 0) + 1);
    if (chosen) choose(rows().find((row) => row.dataset.key === chosen) || null, false);
    if (href) { const link = [...live.querySelectorAll("a")].find((each) => each.getAttribute("href") === href); if (link) link.focus(); }
    draw();
  });
  addEventListener("pagehide", () => events.close());
}

// ---- following a topic: rows that came are put on top

const MOST_ROWS = 200; // of a topic that is followed: each that comes makes the browser lay out all of them
const MOST_FRESH = 20; // that are highlighted when they come

function startTail(button) {
  const state = byId("tail-state");
  let events = null, rows = 0, missed = 0, waiting = [];
  const body = () => live.querySelector(".records tbody");

  function show(data) {
    if (!body()) { location.reload(); return; } // the topic was empty when the page was made
    const holder = document.createElement("tbody");
    holder.innerHTML = data.rows;
    if (holder.children.length <= MOST_FRESH) for (const row of holder.children) row.classList.add("fresh");
    const table = body();
    table.prepend(...holder.children);
    while (table.children.length > MOST_ROWS) table.lastElementChild.remove();
    rows += data.shown;
    missed += data.new - data.read;
    state.textContent = describe(data.per_s);
    live.dataset.tailed = String(rows);
  }

  function describe(perSecond) {
    const sampled = missed ? `, a sample: ${missed.toLocaleString("en")} not shown` : "";
    return `following: ${rows.toLocaleString("en")} shown${sampled}, ${short(perSecond, "/s")}`;
  }

  function press() {
    const on = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!on));
    button.textContent = on ? "Follow" : "Pause";
    if (!events) {
      state.textContent = "connecting…";
      events = new EventSource(button.dataset.tail);
      events.addEventListener("records", (event) => {
        const data = JSON.parse(event.data);
        live.dataset.tailing = "true";
        if (button.getAttribute("aria-pressed") === "true") { show(data); return; }
        waiting.push(data);
        if (waiting.length > 50) { const gone = waiting.shift(); missed += gone.new; }
        state.textContent = `paused: ${waiting.reduce((sum, each) => sum + each.new, 0).toLocaleString("en")} more came`;
      });
      events.addEventListener("problem", (event) => { state.textContent = JSON.parse(event.data); events.close(); });
      addEventListener("pagehide", () => events.close());
    } else if (on) {
      state.textContent = "paused";
    } else {
      const held = waiting;
      waiting = [];
      state.textContent = describe(0);
      held.forEach(show);
    }
  }
  button.hidden = false;
  button.addEventListener("click", press);
}

const tail = byId("tail");
if (tail) startTail(tail);

// ---- a search that has more to scan goes on by itself, until it has enough or is stopped

async function goOn(link) {
  const stop = byId("stop");
  let stopped = false;
  const wanted = Number(new URLSearchParams(location.search).get("n") || 50);
  stop.hidden = false;
  stop.addEventListener("click", () => { stopped = true; });
  while (link && !stopped && live.querySelectorAll(".records tbody tr").length < wanted) {
    const response = await fetch(link.href);
    if (!response.ok) break;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const found = page.querySelector(".records table"), here = live.querySelector(".records");
    if (found && here.querySelector("tbody")) here.querySelector("tbody").append(...found.querySelectorAll("tbody tr"));
    else if (found) here.replaceChildren(found.parentElement);
    byId("scanned").textContent = page.getElementById("scanned").textContent;
    byId("shown").textContent = `${live.querySelectorAll(".records tbody tr").length} records`;
    const next = page.getElementById("more");
    if (next) { link.href = next.getAttribute("href"); link.textContent = next.textContent; }
    else { link.remove(); link = null; }
  }
  stop.hidden = true;
  live.dataset.searched = stopped ? "stopped" : "done";
}

const more = byId("more");
if (more && more.hasAttribute("data-search")) goOn(more);

if (live && live.dataset.live) follow(live.dataset.live);
if (live) {
  draw();
  addEventListener("resize", () => requestAnimationFrame(draw));
}
