"use strict";
// What the page holds: `page`, the list that is there at once, and the traces, unpacked when one is first wanted.
// Everything in it is data: it enters the document as text, never as markup.

const page = JSON.parse(document.getElementById("data").textContent);
const SIGNS = { right: "✓", wrong: "✗", error: "!" };
const LOSS_WORDS = {
  not_retrieved: "gold not retrieved",
  filtered_away: "gold filtered away",
  answered_wrong: "answered wrong",
  right: "right",
  right_without_gold: "right without gold",
  error: "ended in an error",
  unknown: "unknown: the program shows no passages",
};

let unpacking = null;

/** The traces of this page: {pieces, passages, traces}, one trace a row; unpacked once. */
function unpacked() {
  unpacking ??= unpack(document.getElementById("traces").textContent);
  return unpacking;
}

async function unpack(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** An element with attributes and children; a child that is a string becomes a text node. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const ACTS = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u{e0000}-\u{e007f}\p{Surrogate}]|\r(?!\n)/gu;

/** A text in which what would act, or hide, is written as an escape: the same as in a terminal (`visible` in text.py). */
function visible(text) {
  const hex = (code, digits) => code.toString(16).padStart(digits, "0");
  const escape = (c) => (c < " " ? `\\x${hex(c.charCodeAt(0), 2)}` : c.split("").map((half) => `\\u${hex(half.charCodeAt(0), 4)}`).join(""));
  return String(text).replace(ACTS, escape);
}

/** Any text in a line, set apart from its surroundings: its writing direction stays its own. */
function apart(text, attributes = {}) {
  return make("bdi", attributes, visible(text));
}

/** `n` with thousands parted, or a dash. */
function number(n) {
  return n === undefined || n === null ? "–" : n.toLocaleString("en");
}

function percent(share) {
  return (100 * share).toFixed(1);
}

/** right, wrong or error: what a row's sign and colour say. */
function stateOf(row) {
  return row.error ? "error" : row.right ? "right" : "wrong";
}

/** What a row is called in an address: its id, and its repeat where there are several. */
function nameOf(row) {
  return row.repeat ? `${row.id}#${row.repeat}` : row.id;
}
