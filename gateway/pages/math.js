// Formulas of LaTeX as MathML, made by calls. What is not known, too deep or too long gives null, and the caller shows the formula
// as it was written: a formula is drawn whole or not at all, so that no part of it is lost.
import { ACCENTS, ALPHABETS, DELIMITERS, FONTS, FUNCTIONS, GREEK, INTEGRALS, LARGE, LIMITS, LONG_ARROWS, OPERATORS, ORDINARY, SPACES, WIDE_OVER, WIDE_UNDER } from "./math_symbols.js";

const LENGTH_MAX = 8000; // characters of a formula
const DEPTH_MAX = 20; // groups in groups: browsers measure what is nested again and again

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";
function m(name, properties, ...children) {
  const node = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(properties)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const row = (nodes) => (nodes.length === 1 ? nodes[0] : m("mrow", {}, ...nodes));
const space = (width) => m("mspace", { width });
const TIGHT = { lspace: "0", rspace: "0" };

class Unknown extends Error {}

// The element of a formula, or null.
export function drawMath(tex, display) {
  if (tex.length > LENGTH_MAX || !tex.trim()) return null;
  try {
    const parser = new Parser(tex.replace(/&(lt|gt|amp);/g, (_, name) => ({ lt: "<", gt: ">", amp: "&" })[name]));
    const lines = parser.lines();
    if (parser.at < parser.tex.length) return null;
    return m("math", { ...(display && { display: "block" }), alttext: tex.trim() }, lines.length === 1 ? row(lines[0]) : table(lines.map((l) => [l]), "lines", display));
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}

// rows: of cells, which are lists of nodes. kind: a class of style.css, which places the cells. sides: of the columns, l, c or r, with | where a
// line stands beside it. lines: above which rows is one.
function table(rows, kind, large, sides = [], lines = new Set()) {
  const classOf = (side) => (side ? { class: `side-${side.replace(/\|/g, "")}${side[0] === "|" ? " bar" : ""}${side.at(-1) === "|" ? " last-bar" : ""}` } : {});
  const lineOf = (i) => ({ class: `${lines.has(i) ? "line" : ""} ${i === rows.length - 1 && lines.has(i + 1) ? "last-line" : ""}` });
  return m("mtable", { class: kind, ...(large && { displaystyle: "true" }) },
    ...rows.map((cells, i) => m("mtr", lines.size ? lineOf(i) : {}, ...cells.map((nodes, n) => m("mtd", classOf(sides[n]), ...nodes)))));
}

const fence = (sign, more = { stretchy: "true", symmetric: "true" }) => m("mo", { ...more, ...TIGHT }, sign);
const fenced = (open, inside, close) => m("mrow", {}, ...(open ? [fence(open, { stretchy: "true", symmetric: "true", form: "prefix" })] : []), inside,
  ...(close ? [fence(close, { stretchy: "true", symmetric: "true", form: "postfix" })] : []));

// Environments: [kind of table, delimiters, as large as in a line of its own, sides of the columns (repeated)].
const ENVIRONMENTS = new Map(Object.entries({
  matrix: ["matrix"], pmatrix: ["matrix", "()"], bmatrix: ["matrix", "[]"], Bmatrix: ["matrix", "{}"], vmatrix: ["matrix", "||"], Vmatrix: ["matrix", "‖‖"],
  smallmatrix: ["matrix"], array: ["matrix"], cases: ["cases", "{ ", false, "ll"], dcases: ["cases", "{ ", true, "ll"], rcases: ["cases", " }", false, "ll"],
  aligned: ["aligned", "", true, "rl"], align: ["aligned", "", true, "rl"], alignat: ["aligned", "", true, "rl"], alignedat: ["aligned", "", true, "rl"], split: ["aligned", "", true, "rl"],
  eqnarray: ["aligned", "", true, "rcl"], gathered: ["lines", "", true], gather: ["lines", "", true], multline: ["lines", "", true], equation: ["lines", "", true],
}));
const SWITCHES = { rm: "roman", bf: "bold", it: "italic", cal: "script", tt: "mono", sf: "sans" };
export const isEnvironment = (name) => ENVIRONMENTS.has(name.replace("*", ""));

class Parser {
  constructor(tex) {
    [this.tex, this.at, this.depth, this.font] = [tex, 0, 0, ""];
  }

  /* -- reading */

  match(expression) { // a sticky one
    expression.lastIndex = this.at;
    const found = expression.exec(this.tex);
    if (found) this.at = expression.lastIndex;
    return found;
  }
  skipSpace() { this.match(/\s+/y); }
  peek() {
    this.skipSpace();
    return this.tex[this.at];
  }
  eat(text) {
    this.skipSpace();
    const is = this.tex.startsWith(text, this.at) && !(/^\\[a-zA-Z]/.test(text) && /[a-zA-Z]/.test(this.tex[this.at + text.length] || ""));
    if (is) this.at += text.length;
    return is;
  }
  need(text) { if (!this.eat(text)) throw new Unknown(); }

  // The text of {...}, which is no formula.
  rawArgument() {
    this.need("{");
    const found = this.match(/((?:[^{}\\]|\\[^])*)\}/y);
    if (!found) throw new Unknown();
    return found[1];
  }

  /* -- structure */

  deeper(run) {
    if (++this.depth > DEPTH_MAX) throw new Unknown();
    const font = this.font;
    const made = run();
    this.font = font;
    this.depth--;
    return made;
  }

  // Lines that \\ ends: lists of nodes.
  lines() {
    const lines = [this.nodes()];
    while (this.newLine()) lines.push(this.nodes());
    if (lines.length > 1 && !lines.at(-1).length) lines.pop();
    return lines;
  }
  newLine() {
    if (!this.eat("\\\\") && !this.eat("\\cr")) return false;
    this.match(/\*?(?:\s*\[\s*-?[\d.]+\s*(?:em|ex|pt|mm|cm|in|mu)\s*\])?/y);
    return true;
  }

  // Nodes up to what ends a group, a cell or a line.
  nodes() {
    const font = this.font;
    const out = [];
    this.fill(out);
    this.font = font;
    return out;
  }
  fill(out) {
    for (;;) {
      const c = this.peek();
      if (c === undefined || c === "}" || c === "&" || /\\(?:\\|(?:right|end|middle|cr)(?![a-zA-Z]))/y.test(this.tex.slice(this.at, this.at + 8))) return;
      const style = this.match(/\\(displaystyle|textstyle|scriptstyle|scriptscriptstyle)(?![a-zA-Z])/y);
      if (style) {
        const level = { displaystyle: 0, textstyle: 0, scriptstyle: 1, scriptscriptstyle: 2 }[style[1]];
        out.push(m("mstyle", { displaystyle: String(style[1] === "displaystyle"), scriptlevel: String(level) }, ...this.deeper(() => this.nodes())));
        continue;
      }
      const over = this.match(/\\(over|choose)(?![a-zA-Z])/y);
      const font = this.match(/\\(rm|bf|it|cal|tt|sf)(?![a-zA-Z])/y);
      if (over) {
        const made = m("mfrac", over[1] === "choose" ? { linethickness: "0" } : {}, m("mrow", {}, ...out.splice(0)), m("mrow", {}, ...this.deeper(() => this.nodes())));
        out.push(over[1] === "choose" ? fenced("(", made, ")") : made);
      } else if (font) this.font = SWITCHES[font[1]];
      else this.scripted(out);
    }
  }

  group() {
    return this.deeper(() => {
      const inside = this.nodes();
      this.need("}");
      return row(inside);
    });
  }

  // What a command or a script takes: a group, or one sign.
  argument() {
    if (this.eat("{")) return this.group();
    const c = this.peek();
    if (c === undefined || "}&^_'".includes(c)) throw new Unknown();
    if (/\d/.test(c)) return m("mn", {}, this.styled(this.match(/\d/y)[0]));
    const { node } = this.deeper(() => this.atom([]));
    if (!node) throw new Unknown();
    return node;
  }
  optional() {
    if (!this.eat("[")) return null;
    const end = this.tex.indexOf("]", this.at);
    if (end < 0) throw new Unknown();
    const inner = new Parser(this.tex.slice(this.at, end));
    inner.depth = this.depth + 1;
    const nodes = inner.nodes();
    if (inner.at < inner.tex.length) throw new Unknown();
    this.at = end + 1;
    return row(nodes);
  }

  // An atom with its primes, subscript and superscript.
  scripted(out) {
    const atom = "^_'".includes(this.peek()) ? { node: m("mrow", {}) } : this.atom(out);
    if (!atom.node) return;
    let [sub, sup, above] = [null, null, atom.limits === true];
    for (;;) {
      if (this.eat("\\limits")) above = true;
      else if (this.eat("\\nolimits")) above = false;
      else if (this.peek() === "'" && !sup) {
        const primes = m("mo", TIGHT, "′".repeat(this.match(/'+/y)[0].length));
        sup = this.eat("^") ? row([primes, this.argument()]) : primes;
      } else if (!sub && this.eat("_")) sub = this.argument();
      else if (!sup && this.eat("^")) sup = this.argument();
      else break;
    }
    if ("^_'".includes(this.peek() ?? " ")) throw new Unknown(); // twice
    const parts = [atom.node, ...(sub ? [sub] : []), ...(sup ? [sup] : [])];
    const name = above ? (sub && sup ? "munderover" : sub ? "munder" : "mover") : sub && sup ? "msubsup" : sub ? "msub" : "msup";
    out.push(sub || sup ? m(name, {}, ...parts) : atom.node);
    if (atom.word && !/^(?:[([}&^_,.;:!)\]|/]|\\(?:left|right|[\\,:;!}|]|big|end|quad)|$)/.test(this.tex.slice(this.at).trimStart().slice(0, 8))) out.push(space("0.1667em"));
  }

  /* -- atoms: {node, limits: scripts stand above and below, word: a space follows} */

  atom(before) {
    const c = this.peek();
    if (c === "\\") return this.command(before);
    if (c === "{") {
      this.at++;
      return { node: m("mrow", {}, this.group()) };
    }
    const word = this.font && this.match(/[a-zA-Z]+/y);
    if (word) return { node: this.letters(word[0]) };
    const number = this.match(/(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+/y);
    if (number) return { node: m("mn", {}, this.styled(number[0])) };
    const sign = String.fromCodePoint(this.tex.codePointAt(this.at));
    this.at += sign.length;
    if (/[\p{L}\p{M}\p{N}]/u.test(sign)) return { node: m("mi", {}, sign) };
    if ("#$%".includes(sign)) throw new Unknown(); // they mean something, here nothing
    if (sign === "~") return { node: space("0.25em") };
    return { node: this.sign({ "-": "−", "*": "∗", "`": "‘" }[sign] || sign, before) };
  }

  sign(sign, before) {
    if ("()[]|/‖".includes(sign)) return m("mo", { stretchy: "false", ...TIGHT }, sign);
    const last = before.at(-1);
    const alone = !last || (last.localName === "mo" && !/^[)\]}|!⟩⌋⌉′]$/.test(last.textContent)); // nothing that it joins to what follows
    if ("+−±∓".includes(sign) && alone) return m("mo", { form: "prefix", ...TIGHT }, sign);
    return m("mo", { stretchy: "false" }, sign);
  }

  // Letters in the alphabet that was chosen.
  letters(word) {
    if (this.font === "roman") return m("mi", { mathvariant: "normal" }, word);
    if (this.font === "italic" && word.length > 1) return m("mi", {}, [...word].map((c) => String.fromCodePoint(c === "h" ? 0x210e : c.codePointAt(0) + (c < "a" ? 0x1d434 - 65 : 0x1d44e - 97))).join(""));
    const text = this.styled(word);
    return m("mi", {}, text);
  }
  styled(text) {
    const alphabet = ALPHABETS[this.font];
    if (!alphabet) return text;
    const [capital, small, digit, elsewhere, greekCapital, greekSmall] = alphabet;
    const moved = (c, from, to) => (to ? String.fromCodePoint(c.codePointAt(0) - from.codePointAt(0) + to) : c);
    return [...text].map((c) => {
      if (elsewhere?.has(c)) return elsewhere.get(c);
      if (c >= "A" && c <= "Z") return moved(c, "A", capital);
      if (c >= "a" && c <= "z") return moved(c, "a", small);
      if (c >= "0" && c <= "9") return moved(c, "0", digit);
      if (c >= "Α" && c <= "Ω") return moved(c, "Α", greekCapital);
      return c >= "α" && c <= "ω" ? moved(c, "α", greekSmall) : c;
    }).join("");
  }
  inFont(font, run) {
    const before = this.font;
    this.font = font;
    const made = run();
    this.font = before;
    return made;
  }

  command(before) {
    const name = this.match(/\\([a-zA-Z]+|[^])/y)?.[1];
    if (name === undefined) throw new Unknown();
    if (GREEK.has(name)) return { node: m("mi", /^[A-Z]/.test(name) && !this.font ? { mathvariant: "normal" } : {}, this.styled(GREEK.get(name))) };
    if (ORDINARY.has(name)) return { node: m("mi", { mathvariant: "normal" }, ORDINARY.get(name)) };
    if (OPERATORS.has(name)) return { node: this.sign(OPERATORS.get(name), before) };
    if (LARGE.has(name)) return { node: m("mo", {}, LARGE.get(name)), limits: true };
    if (INTEGRALS.has(name)) return { node: m("mo", {}, INTEGRALS.get(name)) };
    if (FUNCTIONS.has(name)) return { node: m("mi", { mathvariant: "normal" }, name), word: true };
    if (LIMITS.has(name)) return { node: m("mo", { movablelimits: "true", ...TIGHT }, name.replace(/^(lim|arg|inj|proj)(?=[a-z])/, "$1\u2009")), limits: true, word: true };
    if (SPACES.has(name)) return { node: space(SPACES.get(name)) };
    if (FONTS.has(name)) return { node: this.inFont(FONTS.get(name), () => this.argument()) };
    if (DELIMITERS.has("\\" + name)) return { node: m("mo", { stretchy: "false", ...TIGHT }, DELIMITERS.get("\\" + name)) };
    if (ACCENTS.has(name)) return { node: m("mover", { accent: "true" }, this.argument(), m("mo", { stretchy: "false" }, ACCENTS.get(name))) };
    if (WIDE_OVER.has(name)) return { node: m("mover", { accent: "true" }, this.argument(), m("mo", { stretchy: "true" }, WIDE_OVER.get(name))), limits: name === "overbrace" };
    if (WIDE_UNDER.has(name)) return { node: m("munder", { accentunder: "true" }, this.argument(), m("mo", { stretchy: "true" }, WIDE_UNDER.get(name))), limits: name === "underbrace" };
    if (LONG_ARROWS.has(name)) return { node: this.longArrow(LONG_ARROWS.get(name)) };
    const run = COMMANDS.get(name);
    if (!run) throw new Unknown();
    const made = run(this, before);
    return made.node || made.nothing ? made : { node: made };
  }

  longArrow(sign) {
    const below = this.optional();
    const above = this.argument();
    const padded = (node) => m("mrow", {}, space("0.4em"), node, space("0.4em"));
    const arrow = m("mo", { stretchy: "true" }, sign);
    return below ? m("munderover", {}, arrow, padded(below), padded(above)) : m("mover", {}, arrow, padded(above));
  }

  delimiter() {
    this.skipSpace();
    const name = this.match(/\\[a-zA-Z]+|\\[{}|]|[^\\\s]/y)?.[0];
    if (name === ".") return "";
    if (!DELIMITERS.has(name)) throw new Unknown();
    return DELIMITERS.get(name);
  }

  leftRight() {
    const open = this.delimiter();
    const inside = this.deeper(() => {
      const nodes = this.nodes();
      while (this.eat("\\middle")) nodes.push(fence(this.delimiter()), ...this.nodes());
      return nodes;
    });
    this.need("\\right");
    return fenced(open, m("mrow", {}, ...inside), this.delimiter());
  }

  // {text} with formulas between $.
  text(font) {
    const parts = this.rawArgument().split(/(?<!\\)\$/);
    if (parts.length % 2 === 0) throw new Unknown();
    const nodes = parts.map((part, i) => {
      if (i % 2) {
        const inner = new Parser(part);
        inner.depth = this.depth + 1;
        const nodes = inner.nodes();
        if (inner.at < part.length) throw new Unknown();
        return row(nodes);
      }
      if (/\\[^%#&$_{}\\ ,]|~~/.test(part)) throw new Unknown();
      return m("mtext", font ? { class: font } : {}, part.replace(/\\([^])/g, "$1").replace(/~/g, " ").replace(/\s+/g, " ").replace(/^ | $/g, "\u00a0"));
    });
    return row(nodes.filter((n) => n.textContent));
  }

  environment() {
    const name = this.rawArgument();
    const environment = ENVIRONMENTS.get(name.replace(/\*$/, ""));
    if (!environment) throw new Unknown();
    const [kind, delimiters = "", large = false, repeated = ""] = environment;
    this.match(/\s*\[[tbc]\]/y);
    let sides = null;
    if (name === "array") {
      const columns = this.rawArgument().replace(/\s/g, "");
      if (!/^(\|{0,2}[lcr])+\|{0,2}$/.test(columns)) throw new Unknown();
      sides = columns.match(/\|*[lcr](\|+$)?/g);
    } else if (/^aligned?at/.test(name)) this.rawArgument();
    const [rows, lines] = this.deeper(() => this.rows());
    this.need(`\\end{${name}}`);
    const width = Math.max(...rows.map((cells) => cells.length));
    sides ||= repeated ? repeated.repeat(Math.ceil(width / repeated.length)) : [];
    const made = table(rows, name === "smallmatrix" ? "matrix small" : kind, large, sides, lines);
    return delimiters ? fenced(delimiters[0].trim(), made, delimiters[1].trim()) : made;
  }
  rows() {
    const [rows, lines] = [[[]], new Set()];
    for (;;) {
      while (this.eat("\\hline")) lines.add(rows.length - 1);
      rows.at(-1).push(this.nodes());
      if (this.eat("&")) continue;
      if (!this.newLine()) break;
      rows.push([]);
    }
    if (rows.length > 1 && rows.at(-1).length === 1 && !rows.at(-1)[0].length) rows.pop();
    return [rows, lines];
  }
}

const fraction = (more, open = "", close = "") => (p) => {
  const made = m("mfrac", more, p.argument(), p.argument());
  return open ? fenced(open, made, close) : made;
};
const large = (size) => (p) => {
  const sign = p.delimiter();
  return fence(sign, { stretchy: "true", symmetric: "true", minsize: size, maxsize: size });
};
const stacked = (name) => (p) => {
  const script = p.argument();
  return m(name, {}, p.argument(), script);
};
const nothing = () => ({ nothing: true });
const asIs = (p) => p.argument();
const remainder = (open, word, close) => (p) => m("mrow", {}, space("0.5em"), m("mtext", {}, open + word + "\u00a0"), p.argument(), m("mtext", {}, close));

const COMMANDS = new Map(Object.entries({
  frac: fraction({}), dfrac: fraction({ displaystyle: "true" }), tfrac: fraction({ displaystyle: "false" }), cfrac: fraction({ displaystyle: "true" }),
  binom: fraction({ linethickness: "0" }, "(", ")"), dbinom: fraction({ linethickness: "0", displaystyle: "true" }, "(", ")"), tbinom: fraction({ linethickness: "0", displaystyle: "false" }, "(", ")"),
  sqrt: (p) => {
    const degree = p.optional();
    return degree ? m("mroot", {}, p.argument(), degree) : m("msqrt", {}, p.argument());
  },
  overline: (p) => m("mrow", { class: "overline" }, p.argument()), underline: (p) => m("mrow", { class: "underline" }, p.argument()),
  boxed: (p) => m("mrow", { class: "boxed" }, p.argument()), fbox: (p) => m("mrow", { class: "boxed" }, p.text()),
  cancel: (p) => m("mrow", { class: "struck" }, p.argument()), phantom: (p) => m("mphantom", {}, p.argument()),
  overset: stacked("mover"), underset: stacked("munder"), stackrel: stacked("mover"),
  left: (p) => p.leftRight(), begin: (p) => p.environment(),
  text: (p) => p.text(), textrm: (p) => p.text(), mbox: (p) => p.text(), textnormal: (p) => p.text(),
  textbf: (p) => p.text("bold"), textit: (p) => p.text("slanted"), emph: (p) => p.text("slanted"), texttt: (p) => p.text("mono"), textsf: (p) => p.text(),
  operatorname: (p) => {
    const limits = p.eat("*");
    const name = p.rawArgument().replace(/\\[,;: ]|~/g, "\u2009");
    if (name.includes("\\")) throw new Unknown();
    return { node: m("mo", { movablelimits: String(limits), ...TIGHT }, name), limits, word: true };
  },
  substack: (p) => {
    p.need("{");
    const lines = p.deeper(() => p.lines());
    p.need("}");
    return table(lines.map((l) => [l]), "stack");
  },
  not: (p) => {
    const node = p.argument();
    if (!["mo", "mi"].includes(node.localName) || [...node.textContent].length !== 1) throw new Unknown();
    node.append("\u0338");
    node.normalize();
    return node;
  },
  pmod: remainder("(", "mod", ")"), pod: remainder("(", "", ")"),
  tag: (p) => {
    const star = p.eat("*");
    return m("mtext", { class: "tag" }, star ? p.rawArgument() : `(${p.rawArgument()})`);
  },
  label: (p) => (p.rawArgument(), { nothing: true }), notag: nothing, nonumber: nothing, hfill: nothing, // nothing is seen of them in print
  hspace: (p) => {
    p.eat("*");
    const width = p.rawArgument().trim();
    if (!/^-?(\d{1,2}(\.\d+)?|\.\d+)(em|ex|pt|mm|cm)$/.test(width)) throw new Unknown();
    return space(width);
  },
  mathop: (p) => ({ node: p.argument(), limits: true }), mathbin: asIs, mathrel: asIs, mathord: asIs, mathopen: asIs, mathclose: asIs, mathpunct: asIs, mathinner: asIs,
  big: large("1.2em"), bigl: large("1.2em"), bigr: large("1.2em"), bigm: large("1.2em"), Big: large("1.8em"), Bigl: large("1.8em"), Bigr: large("1.8em"), Bigm: large("1.8em"),
  bigg: large("2.4em"), biggl: large("2.4em"), biggr: large("2.4em"), biggm: large("2.4em"), Bigg: large("3em"), Biggl: large("3em"), Biggr: large("3em"), Biggm: large("3em"),
}));
