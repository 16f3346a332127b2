// Markdown as models write it, with formulas, drawn by DOM calls. HTML in the text stays text, images are shown as links (nothing is
// loaded), and a link exists only with a scheme of SAFE_SCHEMES. Depth is bounded, a search that found no end is not repeated,
// and no expression goes back over long runs, so a hostile text costs a small multiple of its length.
import { copyButton, el } from "./dom.js";
import { decodeEntities, entityAt } from "./entities.js";
import { beginsDisplay, draw, formulaAt, MISSES_MAX } from "./formulas.js";

const SAFE_SCHEMES = ["http:", "https:", "mailto:"];
const DEPTH_MAX = 8;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*)|$)/;
const FENCE = /^ {0,3}(`{3,32}|~{3,32})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const FORMULA_LINES_MAX = 100;

// Draws the text into the container. Blocks that are there with the same source stay, so a text that grows moves neither the
// selection nor the focus in what stands above.
export function renderMarkdown(container, text) {
  const found = blocks(text.replace(/\r\n?/g, "\n").replace(/^[ \t]+/gm, (s) => s.replaceAll("\t", "    ")).split("\n"), 0);
  found.forEach(({ source, build }, i) => {
    const old = container.children[i];
    if (old && old.markdown === source) return;
    const block = build();
    block.markdown = source;
    if (old) old.replaceWith(block);
    else container.append(block);
  });
  while (container.children.length > found.length) container.lastElementChild.remove();
}

/* -- blocks: [{source, build}] */

function blocks(lines, depth) {
  const found = [];
  for (let i = 0; i < lines.length; ) {
    if (!lines[i].trim()) {
      i++;
      continue;
    }
    const [end, build] = block(lines, i, depth);
    found.push({ source: lines.slice(i, end).join("\n"), build });
    i = end;
  }
  return found;
}

const drawBlocks = (lines, depth) => blocks(lines, depth).map(({ build }) => build());
const indent = (line) => line.length - line.trimStart().length;

function block(lines, i, depth) {
  const line = lines[i];
  let match;
  if ((match = FENCE.exec(line))) return fence(lines, i, match);
  if ((match = HEADING.exec(line))) {
    const [level, text] = [Math.min(6, match[1].length + 2), match[2].trim().replace(/ #+$/, "")];
    return [i + 1, () => el("h" + level, {}, ...inline(text, 0))];
  }
  if (RULE.test(line)) return [i + 1, () => el("hr")];
  if (depth < DEPTH_MAX && QUOTE.test(line)) return quote(lines, i, depth);
  if (depth < DEPTH_MAX && ITEM.test(line)) return list(lines, i, depth);
  if (line.includes("|") && i + 1 < lines.length && cells(lines[i + 1]).every((c) => /^:?-+:?$/.test(c))) return table(lines, i);
  const end = paragraphEnd(lines, i);
  const text = lines.slice(i, end).map((l) => l.trimStart()).join("\n");
  return [end, () => el("p", {}, ...inline(text, 0))];
}

function paragraphEnd(lines, i) {
  let end = behindFormula(lines, i);
  while (end < lines.length && lines[end].trim() && !beginsBlock(lines[end])) end = behindFormula(lines, end);
  return end;
}

// The line behind this one and behind a formula that it begins, whatever the lines of that look like.
function behindFormula(lines, i) {
  const [at, open] = [...opaque(lines[i])].at(-1) || [];
  if (!open?.open) return i + 1;
  let end = i + 1;
  while (end < lines.length && end < i + FORMULA_LINES_MAX && lines[end].trim()) end++;
  const text = lines.slice(i, end).join("\n");
  const whole = opaque(text).get(at);
  if (whole && !whole.open) return i + text.slice(0, whole.end).split("\n").length;
  return beginsDisplay(lines[i]) ? end : i + 1; // its end may be on its way
}

function beginsBlock(line) {
  return beginsDisplay(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || /^ {0,3}(?:[-*+]|1[.)]) /.test(line);
}

function fence(lines, i, [, mark, info]) {
  let end = i + 1;
  const closes = (l) => l.trimStart().startsWith(mark) && !l.trim().replaceAll(mark[0], "");
  while (end < lines.length && !closes(lines[end])) end++;
  const margin = indent(lines[i]);
  const code = lines.slice(i + 1, end).map((l) => l.slice(Math.min(margin, indent(l)))).join("\n");
  const language = info.trim().split(/\s/)[0];
  const isWhole = end < lines.length;
  return [Math.min(end + 1, lines.length), () => (language === "math" && isWhole ? el("p", {}, draw(code, true, code)) : codeBlock(code, language))];
}

export function codeBlock(code, language) {
  const name = language ? `Code, ${language}` : "Code";
  return el("div", { class: "code" },
    el("div", { class: "code-head" }, el("span", {}, language || "text"), copyButton(() => code, "Copy the code")),
    el("pre", { tabindex: "0", role: "region", "aria-label": name }, el("code", {}, code)));
}

function quote(lines, i, depth) {
  let end = i;
  while (end < lines.length && (QUOTE.test(lines[end]) || (end > i && lines[end].trim() && !beginsBlock(lines[end])))) end++;
  const inside = lines.slice(i, end).map((l) => l.replace(QUOTE, ""));
  return [end, () => el("blockquote", {}, ...drawBlocks(inside, depth + 1))];
}

function list(lines, i, depth) {
  const base = indent(lines[i]);
  const ordered = /\d/.test(ITEM.exec(lines[i])[2]);
  const start = parseInt(ITEM.exec(lines[i])[2], 10);
  const isItem = (l) => {
    const m = ITEM.exec(l);
    return m && !RULE.test(l) && m[1].length >= base && m[1].length <= base + 1 && /\d/.test(m[2]) === ordered ? m : null;
  };
  const items = [];
  let end = i;
  while (end < lines.length) {
    const line = lines[end];
    const match = isItem(line);
    if (match) items.push({ margin: match[1].length + match[2].length + 1, lines: [match[3] || ""] });
    else if (!line.trim()) {
      let next = end;
      while (next < lines.length && !lines[next].trim()) next++;
      if (next === lines.length || !(indent(lines[next]) > base || isItem(lines[next]))) break;
      items.at(-1).lines.push("");
      end = next;
      continue;
    } else if (indent(line) > base) items.at(-1).lines.push(line.slice(Math.min(indent(line), items.at(-1).margin)));
    else if (lines[end - 1].trim() && !beginsBlock(line) && !ITEM.test(line)) items.at(-1).lines.push(line);
    else break;
    end++;
  }
  return [end, () => el(ordered ? "ol" : "ul", { start: ordered && start !== 1 ? start : false }, ...items.map((item) => drawItem(item, depth)))];
}

function drawItem(item, depth) {
  const task = /^\[([ xX])\] /.exec(item.lines[0]);
  if (task) item = { lines: [item.lines[0].slice(4), ...item.lines.slice(1)] };
  const parts = drawBlocks(item.lines, depth + 1);
  if (parts[0]?.tagName === "P" && !item.lines.includes("")) parts.splice(0, 1, ...parts[0].childNodes);
  return el("li", {}, task && (task[1] === " " ? "☐ " : "☑ "), ...parts);
}

// The cells of a row. A formula belongs to one cell, whatever signs it has.
function cells(line) {
  const text = line.trim().replace(/^\||(?<!\\)\|$/g, "");
  const spans = opaque(text);
  const found = [""];
  for (let at = 0; at < text.length; ) {
    const span = spans.get(at);
    const end = span?.formula && !span.open ? span.end : text.startsWith("\\|", at) ? at + 2 : at + 1;
    if (text[at] === "|") found.push("");
    else found[found.length - 1] += end === at + 2 && text[at + 1] === "|" ? "|" : text.slice(at, end);
    at = end;
  }
  return found.map((c) => c.trim());
}

function table(lines, i) {
  const heads = cells(lines[i]);
  const sides = cells(lines[i + 1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : false));
  let end = i + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end++;
  const rows = lines.slice(i + 2, end).map(cells);
  const row = (kind, texts) => el("tr", {}, ...texts.slice(0, heads.length).map((t, n) => el(kind, { class: sides[n] }, ...inline(t, 0))));
  return [end, () => el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, row("th", heads)), el("tbody", {}, ...rows.map((texts) => row("td", texts)))))];
}

/* -- inline: [node or string] */

// The address of a link, or null where its scheme could run something in this page.
export function safeAddress(text) {
  try {
    const url = new URL(text); // absolute: a relative one would lead into this server
    return SAFE_SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, label, source) {
  const href = safeAddress(address);
  return href === null ? source : el("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...label);
}

const MARKS = [["***", "strong", "em"], ["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);
const isSpace = (c) => c === undefined || /\s/.test(c);

// What has no Markdown inside, code and formulas, by where it begins: {end, build}, of formulas also `formula` and `open`.
function opaque(text) {
  const found = new Map();
  const hopeless = new Set(); // runs of backticks that have no end behind here
  const misses = { left: MISSES_MAX };
  const marks = /[`\\$]/g;
  for (let mark; (mark = marks.exec(text)); ) {
    const at = mark.index;
    const span = text[at] === "`" ? codeSpan(text, at, hopeless) : formulaAt(text, at, misses);
    if (span) found.set(at, span);
    marks.lastIndex = span ? span.end : text[at] === "\\" ? at + 2 : text[at] === "`" ? at + ticksAt(text, at).length : at + 1;
  }
  return found;
}

// The text with all of that covered, for searches.
function covered(text, spans) {
  let [out, at] = ["", 0];
  for (const [begin, { end }] of spans) [out, at] = [out + text.slice(at, begin) + "\0".repeat(end - begin), end];
  return out + text.slice(at);
}

// A backslash before one of these is Markdown's. Before others it belongs to what is shown: LaTeX has many such pairs.
const ESCAPE = /^\\(?:[-*_`#~$<>|&.+]|!(?=\[))/;

function inline(text, depth) {
  const out = [];
  const hopeless = new Set(); // marks that have no end behind here
  const spans = opaque(text);
  const searched = covered(text, spans);
  let plain = "";
  let at = 0;
  const add = (node, end) => {
    if (plain) out.push(plain);
    plain = "";
    out.push(node);
    at = end;
  };
  while (at < text.length) {
    const c = text[at];
    const span = spans.get(at);
    const entity = c === "&" && entityAt(text, at);
    if (span) add(span.build(), span.end + (span.display && text[span.end] === "\n" ? 1 : 0));
    else if (c === "\n" || text.startsWith("\\\n", at)) add(el("br"), at + (c === "\n" ? 1 : 2));
    else if (c === "\\") {
      plain += ESCAPE.test(text.slice(at, at + 3)) ? text[at + 1] : text.slice(at, at + 2);
      at += 2;
    } else if (entity) {
      plain += entity.text;
      at = entity.end;
    } else if ("*_~".includes(c) && depth < DEPTH_MAX && emphasis(text, searched, at, hopeless, depth, add)) continue;
    else if ("[!".includes(c) && depth < DEPTH_MAX && bracketLink(text, at, depth, add)) continue;
    else if ("h<".includes(c) && bareLink(text, at, add)) continue;
    else if (c === "`" || "*_~".includes(c)) {
      const run = /^(.)\1*/.exec(text.slice(at, at + 64))[0]; // a run that means nothing
      plain += run;
      at += run.length;
    } else {
      plain += c;
      at++;
    }
  }
  if (plain) out.push(plain);
  return out;
}

const ticksAt = (text, at) => /^`{1,64}/.exec(text.slice(at, at + 64))[0];

function codeSpan(text, at, hopeless) {
  const ticks = ticksAt(text, at);
  if (hopeless.has(ticks)) return null;
  let end = at + ticks.length;
  for (;;) {
    end = text.indexOf(ticks, end);
    if (end < 0) {
      hopeless.add(ticks);
      return null;
    }
    if (text[end + ticks.length] !== "`" && text[end - 1] !== "`") break;
    while (text[end] === "`") end++;
  }
  const code = text.slice(at + ticks.length, end).replaceAll("\n", " ");
  return { end: end + ticks.length, build: () => el("code", {}, code.startsWith(" ") && code.endsWith(" ") && code.trim() ? code.slice(1, -1) : code) };
}

function emphasis(text, searched, at, hopeless, depth, add) {
  for (const [mark, ...tags] of MARKS) {
    if (!text.startsWith(mark, at) || hopeless.has(mark)) continue;
    const begin = at + mark.length;
    if (isSpace(text[begin]) || text[begin] === mark[0] || (mark[0] === "_" && isWord(text[at - 1]))) continue;
    let end = begin;
    do {
      end = searched.indexOf(mark, end + 1);
      if (end > 0 && mark.length === 1 && text[end + 1] === mark) end++; // two: another mark
      else if (end > 0 && !isSpace(text[end - 1]) && !(mark[0] === "_" && isWord(text[end + mark.length]))) break;
    } while (end > 0);
    if (end < 0) {
      hopeless.add(mark);
      continue;
    }
    add(tags.reduceRight((inside, tag) => [el(tag, {}, ...inside)], inline(text.slice(begin, end), depth + 1))[0], end + mark.length);
    return true;
  }
  return false;
}

// [label](address "title") and ![label](address "title")
function bracketLink(text, at, depth, add) {
  const open = text[at] === "!" ? at + 1 : at;
  if (text[open] !== "[") return false;
  const part = text.slice(open, open + 2000);
  const match = /^\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/.exec(part);
  if (!match) return false;
  const address = decodeEntities(match[2]);
  const label = open === at ? inline(match[1], depth + 1) : ["image: " + (match[1] || address)];
  const end = open + match[0].length;
  add(link(address, label, text.slice(at, end)), end);
  return true;
}

function bareLink(text, at, add) {
  if (isWord(text[at - 1])) return false;
  const part = text.slice(at, at + 2000);
  const match = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>|^(https?:\/\/[^\s<>"'`]+)/.exec(part);
  if (!match) return false;
  const source = match[1] || match[2].replace(/[.,;:!?*_~]+$/, "").replace(/(^[^(]*)\)+$/, "$1");
  const address = decodeEntities(source);
  add(link(address, [address], match[0]), at + (match[1] ? match[0].length : source.length));
  return true;
}
