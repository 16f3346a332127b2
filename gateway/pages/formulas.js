// Where a formula is in a text: \( \), \[ \], $$ $$, \begin{} \end{}, and $ $ where it is no price. None holds an empty line, as in LaTeX.
import { el } from "./dom.js";
import { drawMath, isEnvironment } from "./math.js";

const DOLLAR_MAX = 2000; // characters between $ and $
export const MISSES_MAX = 64; // signs $ of a text that are followed until no other one is found; those behind are text
const WIDE = 60; // characters of a formula in a line that may be wider than a phone

// The formula that begins at `at`: {end, build, display: on lines of its own}, with `open` where its end is missing (then all up to the text's end is shown as it is
// written: the end may be on its way). null: none begins. misses: {left} of MISSES_MAX for this text.
export function formulaAt(text, at, misses) {
  const two = text.slice(at, at + 2);
  if (two === "\\(") return delimited(text, at, 2, "\\)", false);
  if (two === "\\[") return delimited(text, at, 2, "\\]", true);
  if (two === "$$") return doubleDollar(text, at);
  if (text[at] === "$") return dollar(text, at, misses);
  const begin = two === "\\b" && /^\\begin\{([a-zA-Z]{1,20}\*?)\}/.exec(text.slice(at, at + 32));
  return begin && isEnvironment(begin[1]) ? environment(text, at, begin[1]) : null;
}

export const beginsDisplay = (line) => /^ {0,3}(?:\\\[|\$\$(?!\$)|\\begin\{)/.test(line);

// Where `close` stands behind `from`; -1: nowhere before an empty line. A backslash goes with the character behind it.
function find(text, from, close) {
  const stops = /\\[^]|\$|\n[ \t]*\n/g;
  stops.lastIndex = from;
  for (let found; (found = stops.exec(text)); ) {
    if (found[0][0] === "\n") return -1;
    if (text.startsWith(close, found.index)) return found.index;
  }
  return -1;
}

// The next $ that is not in braces, as that of \text{if $x$} is.
function findDollar(text, from) {
  const stops = /\\[^]|[${}]|\n[ \t]*\n/g;
  stops.lastIndex = from;
  let depth = 0;
  for (let found; (found = stops.exec(text)) && found[0][0] !== "\n"; ) {
    if (found[0] === "$" && !depth) return found.index;
    depth = Math.max(0, depth + (found[0] === "{") - (found[0] === "}"));
  }
  return -1;
}

function made(text, at, end, tex, display) {
  return { end, formula: true, display, build: () => draw(tex, display, text.slice(at, end)) };
}
const unfinished = (text, at) => ({ end: text.length, formula: true, open: true, build: () => el("span", { class: "unfinished" }, text.slice(at)) });

function delimited(text, at, length, close, display) {
  const end = find(text, at + length, close);
  return end < 0 ? unfinished(text, at) : made(text, at, end + close.length, text.slice(at + length, end), display);
}

function doubleDollar(text, at) {
  if (text[at + 2] === "$" || text[at - 1] === "$") return null;
  const end = find(text, at + 2, "$$");
  if (end > at + 2 && text[end + 2] !== "$") return made(text, at, end + 2, text.slice(at + 2, end), true);
  if (end >= 0) return null;
  const isFirst = !text.slice(text.lastIndexOf("\n", at) + 1, at).trim();
  return isFirst ? unfinished(text, at) : { ...unfinished(text, at), end: at + 2, build: () => "$$" };
}

// $x$ as in Pandoc: no space inside at the ends, no letter or digit around; and what reads like "$5 to the US$" is no formula.
const isWord = (c) => c !== undefined && /[\p{L}\p{N}$]/u.test(c);
function dollar(text, at, misses) {
  if (!misses.left || isWord(text[at - 1]) || /^\s/.test(text[at + 1])) return null;
  const end = findDollar(text.slice(0, at + DOLLAR_MAX), at + 1);
  if (end < 0) misses.left--;
  const tex = text.slice(at + 1, end);
  if (end < 0 || !tex || /\s$/.test(tex) || isWord(text[end + 1])) return null;
  if (/^\d/.test(tex) && /\s/.test(tex) && !/[\\^_=<>+*/]/.test(tex)) return null;
  return made(text, at, end + 1, tex, false);
}

function environment(text, at, name) {
  const marks = /\\(begin|end)\{([a-zA-Z]+\*?)\}|\n[ \t]*\n/g;
  marks.lastIndex = at;
  let depth = 0;
  for (let found; (found = marks.exec(text)) && found[1]; ) {
    if (found[2] !== name) continue;
    depth += found[1] === "begin" ? 1 : -1;
    if (!depth) return made(text, at, marks.lastIndex, text.slice(at, marks.lastIndex), true);
  }
  return unfinished(text, at);
}

export function draw(tex, display, source) {
  const drawn = drawMath(tex, display);
  const kind = display ? " display" : drawn && tex.length > WIDE ? " wide" : "";
  return el("span", { class: `formula${drawn ? "" : " source"}${kind}` }, drawn || source);
}
