// The list of questions: filters, search, order; opening one, by mouse, by keyboard or by its address (#q=ID).

const STEP = 200; // rows that enter the document at a time
const FILTERS = [
  ["all", "all", () => true],
  ["wrong", "wrong", (row) => !row.right && !row.error],
  ["right", "right", (row) => row.right],
  ["changed", "changed between runs", (row) => (row.others || []).some((other) => other && other[1] !== row.right)],
  ["unsteady", "differs between repeats", (row) => unsteady.has(row.id)],
  ["not_retrieved", "gold not retrieved", (row) => row.loss === "not_retrieved"],
  ["filtered_away", "gold lost by the filter", (row) => row.loss === "filtered_away"],
  ["unread", "ids unparseable or suspect", (row) => row.unread > 0],
  ["errors", "errors", (row) => row.error],
];
const ORDERS = {
  position: () => 0,
  score: (a, b) => a.scores[0] - b.scores[0] || (a.scores[1] ?? 0) - (b.scores[1] ?? 0),
  question: (a, b) => a.question.localeCompare(b.question),
};
const at = (id) => document.getElementById(id);
const view = { filter: "all", words: "", deep: null, order: "position", rows: [], shown: 0 };

const REPEATED = page.rows.some((row) => row.repeat);
const unsteady = new Set();

page.rows.forEach((row, place) => { row.place = place; });

/** Find the questions that were answered right in some repeats and wrong in others. */
function compareRepeats() {
  const first = new Map();
  for (const row of page.rows) {
    if (!first.has(row.id)) first.set(row.id, row.right);
    else if (first.get(row.id) !== row.right) unsteady.add(row.id);
  }
}

function drawFilters() {
  for (const [name, words, matches] of FILTERS) {
    const count = page.rows.filter(matches).length;
    if ((name === "changed" && !page.beside.length) || (name === "unsteady" && !REPEATED)) continue;
    const button = make("button", { type: "button", "data-filter": name, "aria-pressed": String(name === view.filter), disabled: !count }, words, " ", make("b", {}, number(count)));
    button.addEventListener("click", () => choose(name));
    at("filters").append(button);
  }
}

function choose(name) {
  view.filter = name;
  for (const button of at("filters").children) button.setAttribute("aria-pressed", String(button.dataset.filter === name));
  draw();
}

/** Take up what the filters, the search and the order ask for. */
function draw() {
  const matches = FILTERS.find(([name]) => name === view.filter)[2];
  const found = page.rows.filter((row) => matches(row) && holds(row, view.words));
  view.rows = found.sort((a, b) => ORDERS[view.order](a, b) || a.place - b.place);
  view.shown = 0;
  at("list").replaceChildren();
  at("count").textContent = `${number(found.length)} of ${number(page.rows.length)} ${REPEATED ? "answers" : "questions"}`;
  grow();
}

function holds(row, words) {
  if (!words) return true;
  const text = [row.question, row.answer ?? "", ...row.golden, row.id].join("\n").toLowerCase();
  return text.includes(words) || Boolean(view.deep && view.deep[row.place].includes(words));
}

/** Let the next rows in. */
function grow(until = view.shown + STEP) {
  const next = view.rows.slice(view.shown, until);
  at("list").append(...next.map(item));
  view.shown += next.length;
  at("more").hidden = view.shown >= view.rows.length;
  at("more").textContent = `${number(view.rows.length - view.shown)} more below`;
}

function item(row) {
  const state = stateOf(row);
  const changed = (row.others || []).some((other) => other && other[1] !== row.right);
  const golden = row.right ? null : make("small", { class: "clip" }, "right: ", apart(row.golden.join(" · ")));
  const parts = [
    make("span", { class: "sign", title: state, role: "img", "aria-label": state }, SIGNS[state]),
    make("span", { class: "place" }, String(page.first + row.place + 1)),
    make("span", { class: "asked" }, apart(row.question, { class: "clip" }), row.repeat ? make("small", {}, `repeat ${row.repeat}`) : null),
    make("span", { class: "said" }, apart(row.answer ?? (row.error ? LOSS_WORDS.error : "no answer"), { class: "clip" }), golden, changed ? make("small", { class: "changed" }, "⇄ changed") : null),
  ];
  const element = make("li", { class: `row is-${state}`, "data-place": row.place }, opener(row, parts));
  return element;
}

/** What opens a row: a button, or on an index the way to the page that holds its trace. */
function opener(row, parts) {
  if (page.pages) return make("a", { class: "open", href: addressOf(row) }, ...parts);
  const button = make("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": `trace-${row.place}` }, ...parts);
  button.addEventListener("click", () => (button.getAttribute("aria-expanded") === "true" ? close(button) : open(button)));
  return button;
}

function addressOf(row) {
  const file = page.pages[Math.floor(row.place / page.size)];
  return `${file}#q=${encodeURIComponent(nameOf(row))}`;
}

async function open(button) {
  const row = page.rows[Number(button.parentElement.dataset.place)];
  const panel = make("div", { class: "trace", id: `trace-${row.place}`, role: "region", "aria-label": `Trace of question ${page.first + row.place + 1}` }, make("p", {}, "unpacking …"));
  button.setAttribute("aria-expanded", "true");
  button.after(panel);
  history.replaceState(null, "", `#q=${encodeURIComponent(nameOf(row))}`);
  try {
    panel.replaceChildren(traceOf(await unpacked(), row, row.place));
  } catch (error) {
    panel.replaceChildren(make("p", { class: "failed" }, `This trace cannot be shown: ${error.message}`));
    throw error;
  }
}

function close(button) {
  button.setAttribute("aria-expanded", "false");
  button.parentElement.querySelector(".trace")?.remove();
}

/** Open the question that the address names. */
async function follow() {
  const name = new URLSearchParams(location.hash.slice(1)).get("q");
  const row = name === null ? undefined : page.rows.find((each) => nameOf(each) === name);
  if (row === undefined) return;
  if (page.pages) return location.replace(addressOf(row));
  if (!view.rows.includes(row)) { at("search").value = view.words = ""; choose("all"); }
  grow(Math.max(view.shown, view.rows.indexOf(row) + 1));
  const button = at("list").querySelector(`[data-place="${row.place}"] > .open`);
  if (button.getAttribute("aria-expanded") !== "true") await open(button);
  button.focus();
  button.scrollIntoView({ block: "start" });
}

/** Everything that was said in each question's calls, for the search that goes into prompts. */
async function saidInCalls() {
  const data = await unpacked();
  const texts = (call) => (call.gone ? [] : [...call.prompt.map(([, pieces]) => pieces), call.reply, call.reasoning]);
  return data.traces.map((trace) => trace.calls.flatMap(texts).map((pieces) => joined(data, pieces)).join("\n").toLowerCase());
}

async function search() {
  view.words = at("search").value.trim().toLowerCase();
  view.deep = at("deep").checked ? view.deep ?? (await saidInCalls()) : null;
  draw();
}

function move(step) {
  const openers = [...at("list").querySelectorAll(".open")];
  const row = document.activeElement?.closest?.(".row");
  const now = row ? openers.indexOf(row.querySelector(".open")) : step > 0 ? -1 : openers.length;
  const next = Math.min(Math.max(now + step, 0), openers.length - 1);
  openers[next]?.focus();
  openers[next]?.scrollIntoView({ block: "nearest" });
  if (next >= openers.length - 2 && view.shown < view.rows.length) grow();
}

/** Close the trace that the focus is in, else the last one opened, and go back to its question. */
function escape() {
  if (document.activeElement === at("search") && at("search").value) {
    at("search").value = "";
    return search();
  }
  const here = document.activeElement?.closest?.(".row")?.querySelector("[aria-expanded=true]");
  const opened = at("list").querySelectorAll("[aria-expanded=true]");
  const button = here ?? opened[opened.length - 1];
  if (button) { close(button); button.focus(); }
}

const KEYS = { j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), "/": () => at("search").focus(), Escape: escape };

function pressed(event) {
  const target = event.target;
  const typing = target.matches?.("input, select, textarea");
  const reading = target.matches?.("pre"); // arrows scroll it
  const arrow = event.key.startsWith("Arrow");
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  if (event.key !== "Escape" && (typing || (arrow && (reading || !target.closest?.("#list"))))) return;
  event.preventDefault();
  KEYS[event.key]();
}

async function copy() {
  const text = at("signature").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page opened from a file may not be let: then it is selected, to be copied by hand
    getSelection().selectAllChildren(at("signature"));
    document.execCommand("copy");
  }
  at("copy").textContent = "Copied";
}

let waiting = 0;
at("search").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 120); });
at("deep").addEventListener("change", search);
at("sort").addEventListener("change", () => { view.order = at("sort").value; draw(); });
at("tools").addEventListener("submit", (event) => { event.preventDefault(); search(); });
at("copy")?.addEventListener("click", copy);
document.addEventListener("keydown", pressed);
window.addEventListener("hashchange", follow);
window.addEventListener("beforeprint", () => grow(view.rows.length));
new IntersectionObserver((seen) => { if (seen.some((each) => each.isIntersecting) && view.shown < view.rows.length) grow(); }, { rootMargin: "800px" }).observe(at("more"));
if (page.pages) at("deep").parentElement.hidden = true;
compareRepeats();
drawFilters();
draw();
follow();
performance.mark("interactive");
