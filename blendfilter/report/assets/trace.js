// One question, opened: its answers, what each query brought, and every prompt and reply. `data` is what `unpacked`
// gives; a text in it is a list of piece numbers, a passage is [id, title, text], and a mark is [passage, 1 kept +
// 2 gold, the spans that were kept].

const KEPT = 1, GOLD = 2;
const LONG = 2000;

function traceOf(data, row, place) {
  const trace = data.traces[place];
  return make("div", { class: "inside" }, answers(row), failure(trace), golds(trace), queries(data, trace), knowledge(data, trace), written(data, trace), calls(data, trace), events(trace));
}

function joined(data, pieces) {
  return pieces.map((piece) => data.pieces[piece]).join("");
}

/** A block of text; a long one shows its beginning, and the rest on demand. */
function block(tag, text, limit = LONG) {
  const shown = visible(text);
  const element = make(tag, { class: "data", dir: "auto", tabindex: tag === "pre" ? "0" : undefined });
  if (shown.length <= limit * 1.2) {
    element.textContent = shown;
    return element;
  }
  element.textContent = `${shown.slice(0, limit)} …`;
  const all = make("button", { type: "button", class: "all" }, `show all ${number(shown.length)} characters`);
  all.addEventListener("click", () => { element.textContent = shown; all.remove(); element.setAttribute("tabindex", "-1"); element.focus(); });
  return make("div", {}, element, all);
}

function heading(text) {
  return make("h3", {}, text);
}

function answers(row) {
  const list = make("dl", { class: "answers" });
  const line = (name, ...values) => list.append(make("dt", {}, name), make("dd", {}, ...values));
  line("answer", row.answer === null ? "none" : block("div", row.answer, 600));
  line(row.right ? "golden answers" : "right would be", apart(row.golden.join("  ·  ") || "not known"));
  (row.others || []).forEach((other, i) => {
    line(page.beside[i], other === null ? "not asked" : other[0] === null ? `${SIGNS.error} ${LOSS_WORDS.error}` : make("span", {}, `${other[1] ? SIGNS.right : SIGNS.wrong} `, apart(other[0] ?? "none")));
  });
  const scores = page.metrics.map((name, i) => `${name} ${percent(row.scores[i])}`).join(", ");
  line("scores", row.loss ? `${scores} (${LOSS_WORDS[row.loss]})` : scores);
  line("id", apart(nameOf(row)), " ", make("a", { href: `#q=${encodeURIComponent(nameOf(row))}` }, "link"));
  return list;
}

function failure(trace) {
  if (!trace.error) return null;
  const { kind, stage, message } = trace.error;
  return make("p", { class: "failed" }, `Error${stage ? ` in ${stage}` : ""}: `, apart(`${kind}: ${message}`));
}

function golds(trace) {
  if (!trace.gold.length) return null;
  const lost = trace.written.length ? "? retrieved, and what a model wrote may stand on it" : "− retrieved and dropped";
  const words = { kept: "+ kept", dropped: lost, missing: trace.error ? "? unknown" : "✗ not retrieved" };
  const items = trace.gold.map(([title, fate, by]) =>
    make("li", {}, "★ ", apart(title), " ", make("small", {}, words[fate] + (by.length ? ` (found by ${by.join(", ")})` : ""))));
  return make("div", {}, heading("Gold titles"), make("ul", { class: "golds" }, ...items));
}

function queries(data, trace) {
  if (!trace.branches.length) return null;
  return make("div", {}, heading("Queries and what they brought"), ...trace.branches.map((branch) => query(data, branch, trace.retrieval[branch.name])));
}

function query(data, branch, figures) {
  const measured = figures ? `recall ${percent(figures.recall)}, precision ${percent(figures.precision)}` : "";
  const notes = [branch.words, measured, branch.read && branch.read !== "ids" ? `the filter's reply: ${branch.read}` : ""].filter(Boolean);
  const found = branch.passages.map((marked, i) => make("div", {}, passage(data, marked), why(branch.reasons[i])));
  if (branch.trim) found.push(make("p", {}, make("small", {}, apart(branch.trim))));
  if (branch.searched && !found.length) found.push(make("p", {}, make("small", {}, "nothing retrieved")));
  return make("div", { class: "query" }, make("p", {}, make("b", {}, apart(branch.name)), " ", make("small", {}, notes.join(" · "))),
    block("p", joined(data, branch.query), 700), ...found);
}

/** What the check said of a passage. */
function why(reason) {
  return reason ? make("div", { class: "why" }, block("div", reason, 400)) : null;
}

function knowledge(data, trace) {
  if (!trace.knowledge.length) return null;
  const alone = !trace.branches.some((branch) => branch.searched);
  if (!alone) return null; // its passages stand under the queries that found them
  return make("div", {}, heading("Knowledge"), ...trace.knowledge.map((marked) => passage(data, marked)));
}

/** What a filter's model wrote and no passage has. */
function written(data, trace) {
  if (!trace.written.length) return null;
  return make("div", {}, heading("Written by the filter, in no passage"), ...trace.written.map((text) => block("p", joined(data, text), 700)));
}

function passage(data, [place, marks, spans]) {
  const [id, title, text] = data.passages[place];
  const kept = Boolean(marks & KEPT);
  const summary = make("summary", {}, make("span", { class: "state" }, kept ? "+ kept" : "− dropped"),
    marks & GOLD ? make("span", { class: "star" }, "★ gold") : null, apart(data.pieces[title] || id, { class: "title" }),
    text === null ? null : apart(data.pieces[text].slice(0, 200).replace(/\s+/g, " "), { class: "peek" }));
  const details = make("details", { class: `passage ${kept ? "kept" : "dropped"}` }, summary);
  whenOpened(details, () => text === null ? make("div", { class: "data" }, "its text is not in the journal")
    : spans ? highlighted(data.pieces[text], spans) : block("div", data.pieces[text]));
  return details;
}

/** A passage with the pieces that were kept marked; spans count characters as Python does, not UTF-16 units. */
function highlighted(text, spans) {
  const characters = [...text];
  const cut = (start, end) => visible(characters.slice(start, end).join(""));
  const parts = [];
  let at = 0;
  for (const [start, end] of spans) {
    parts.push(cut(at, start), make("mark", {}, cut(start, end)));
    at = end;
  }
  return make("div", { class: "data", dir: "auto" }, ...parts, cut(at, characters.length));
}

function calls(data, trace) {
  if (!trace.calls.length) return null;
  return make("div", {}, heading(`Calls (${trace.calls.length})`), ...trace.calls.map((each, i) => call(data, each, i + 1)));
}

function call(data, each, place) {
  const figures = each.gone ? "not in the journal" : [
    `${number(each.tokens_in)} → ${number(each.tokens_out)} tokens`,
    each.tokens_cached ? `${number(each.tokens_cached)} cached` : "",
    each.seconds === undefined ? "" : `${each.seconds.toFixed(2)} s`,
    each.finish || "",
    each.attempts > 1 ? `${each.attempts} attempts` : "",
    each.cost === undefined ? "" : `$${each.cost.toFixed(5)}`,
  ].filter(Boolean).join(" · ");
  const details = make("details", { class: "call" }, make("summary", {}, make("b", {}, `${place} `, apart(each.stage || "call")), each.of?.length ? make("span", { class: "of" }, "for ", apart(each.of.join(", "))) : null, make("small", {}, figures)));
  if (!each.gone) whenOpened(details, () => make("div", {}, ...said(data, each)));
  return details;
}

function said(data, each) {
  const parts = each.prompt.flatMap(([role, pieces]) => [make("small", {}, role ? `prompt, ${role}` : "prompt"), block("pre", joined(data, pieces), 20000)]);
  if (each.reasoning.length) parts.push(make("small", {}, "the model's own reasoning"), block("pre", joined(data, each.reasoning), 20000));
  if (each.error) parts.push(make("p", { class: "failed" }, apart(each.error)));
  else parts.push(make("small", {}, "reply"), each.reply.length ? block("pre", joined(data, each.reply), 20000) : make("p", {}, make("small", {}, "(empty)")));
  return parts;
}

function events(trace) {
  const told = Object.entries(trace.flags).map(([name, count]) => make("span", { class: "tag" }, `${name.replaceAll("_", " ")} ${count}`));
  return told.length ? make("p", { class: "events" }, make("b", {}, "Events "), ...told) : null;
}

/** Fill a `details` when it is first opened. */
function whenOpened(details, content) {
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(content()); });
}
