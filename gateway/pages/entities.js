// Entities of HTML that models write in Markdown: those of numbers, and names that occur in prose and mathematics.
import { GREEK, OPERATORS, ORDINARY } from "./math_symbols.js";

const NAMES = new Map(Object.entries({
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", ensp: "\u2002", emsp: "\u2003", thinsp: "\u2009", shy: "\u00ad", zwj: "\u200d", zwnj: "\u200c", hellip: "…", mdash: "—", ndash: "–",
  lsquo: "‘", rsquo: "’", sbquo: "‚", ldquo: "“", rdquo: "”", bdquo: "„", laquo: "«", raquo: "»", lsaquo: "‹", rsaquo: "›", bull: "•", middot: "·", copy: "©", reg: "®", trade: "™", deg: "°",
  plusmn: "±", micro: "µ", para: "¶", sect: "§", euro: "€", pound: "£", yen: "¥", cent: "¢", iexcl: "¡", iquest: "¿", frac12: "½", frac14: "¼", frac34: "¾", sup1: "¹", sup2: "²", sup3: "³",
  rarr: "→", larr: "←", uarr: "↑", darr: "↓", harr: "↔", rArr: "⇒", lArr: "⇐", hArr: "⇔", infin: "∞", radic: "√", isin: "∈", asymp: "≈", minus: "−", sdot: "⋅", szlig: "ß", permil: "‰",
  auml: "ä", ouml: "ö", uuml: "ü", Auml: "Ä", Ouml: "Ö", Uuml: "Ü", eacute: "é", egrave: "è", ecirc: "ê", agrave: "à", acirc: "â", aacute: "á", ccedil: "ç", ntilde: "ñ", oacute: "ó", iacute: "í", uacute: "ú",
  aring: "å", aelig: "æ", oslash: "ø", check: "✓", star: "☆", hearts: "♥", int: "∫", prod: "∏", sum: "∑", empty: "∅", exist: "∃", and: "∧", or: "∨", cap: "∩", cup: "∪", sub: "⊂", sup: "⊃",
}));
const SAME = ["times", "le", "ge", "ne", "ll", "gg", "equiv", "cong", "sim", "pm", "forall", "nabla", "in", "notin", "ni", "oplus", "otimes", "perp", "therefore"]; // as in LaTeX
for (const name of [...GREEK.keys(), ...SAME]) if (!NAMES.has(name)) NAMES.set(name, GREEK.get(name) || OPERATORS.get(name) || ORDINARY.get(name));
NAMES.set("divide", "÷").set("part", "∂").set("sube", "⊆").set("supe", "⊇").set("thetasym", "ϑ");

const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z][a-zA-Z0-9]{1,9}));/y;

// The entity that begins at `at`: {text, end}, or null.
export function entityAt(source, at) {
  ENTITY.lastIndex = at;
  const found = ENTITY.exec(source);
  if (!found) return null;
  const [, decimal, hex, name] = found;
  const text = name ? NAMES.get(name) : character(decimal ? parseInt(decimal, 10) : parseInt(hex, 16));
  return text === undefined ? null : { text, end: ENTITY.lastIndex };
}

const character = (code) => (code === 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? "\ufffd" : String.fromCodePoint(code));

export function decodeEntities(text) {
  return text.replace(new RegExp(ENTITY.source, "g"), (source) => entityAt(source, 0)?.text ?? source);
}
