// The map: asks /api/swarm every few seconds while the page is seen, and draws it. Every field may be missing, and every text
// was written by a node's owner: it is drawn as text.
import { announce, byId, copyButton, el, formatNumber } from "./dom.js";
import { getJson } from "./stream.js";

const EVERY_MS = 3000, EVERY_MS_MAX = 30000; // the pause grows while the server does not answer
const CELLS_MAX = 1024;

const list = (v) => (Array.isArray(v) ? v.filter((x) => x && typeof x === "object") : []);
const number = (v) => (Number.isFinite(v) ? v : null);
const shown = (v, unit = "", digits = 0) => (number(v) === null ? "–" : formatNumber(v, digits) + unit);
const count = (n, word) => `${formatNumber(n)} ${word}${n === 1 ? "" : "s"}`;

function bytes(v) {
  if (number(v) === null || v < 0) return "–";
  const power = Math.min(4, Math.floor(Math.log2(Math.max(1, v)) / 10));
  return `${formatNumber(v / 2 ** (10 * power), power > 1 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

function range(text) {
  const match = /^(\d{1,9}):(\d{1,9})$/.exec(text);
  return match ? { first: Number(match[1]), end: Number(match[2]) } : null;
}

// Runs of blocks for which key(block) is the same: [{first, end, key}]
function runs(n, key) {
  const found = [];
  for (let b = 0; b < n; b++) {
    if (found.length && found.at(-1).key === key(b)) found.at(-1).end = b + 1;
    else found.push({ first: b, end: b + 1, key: key(b) });
  }
  return found;
}

/* -- coverage of one model: {holders: [n], rates: [tokens/s], weakest: {first, end}} */

function coverageOf(one) {
  const holders = Array.isArray(one.nodes_per_block) ? one.nodes_per_block.slice(0, CELLS_MAX).map((n) => number(n) ?? 0) : [];
  const rates = holders.map((_, b) => number(one.tokens_per_s_per_block?.[b]) ?? 0);
  const worse = (a, b) => (holders[a] === 0) - (holders[b] === 0) || rates[b] - rates[a] || holders[b] - holders[a];
  const least = holders.length ? [...holders.keys()].reduce((a, b) => (worse(b, a) > 0 ? b : a)) : -1;
  const even = holders.every((h, b) => h === holders[0] && rates[b] === rates[0]);
  const weakest = even ? null : runs(holders.length, (b) => worse(b, least) === 0).find((r) => r.key);
  return { holders, rates, weakest, model: one.model, least };
}

function drawStrip({ holders, rates, weakest }) {
  return el("ol", { class: "strip" }, ...holders.map((n, b) => {
    const said = n ? `block ${b}: ${count(n, "node")}, ${rates[b] ? shown(rates[b], " tokens/s") : "speed not measured"}` : `block ${b}: no node`;
    const kind = n === 0 ? "none" : n === 1 ? "one" : "many";
    const framed = weakest && b >= weakest.first && b < weakest.end ? " weakest" : "";
    return el("li", { class: kind + framed, title: said }, el("span", { class: "offscreen" }, said), el("span", { "aria-hidden": "true" }, `${b}`, el("b", {}, `${n}`), rates[b] ? shown(rates[b]) : "–"));
  }));
}

function drawCoverage(all, names) {
  const parts = all.flatMap((one) => [all.length > 1 && el("h3", {}, names.get(one.model) || `Model ${String(one.model).slice(0, 8)}`), drawStrip(one)]);
  byId("coverage").replaceChildren(...parts.filter(Boolean));
  if (!all.length) byId("coverage").append(el("p", { class: "hint" }, "No node has announced blocks."));
}

/* -- gaps */

function gapsOf(data, all) {
  const given = list(data.gaps).filter((g) => range(g.blocks));
  if (given.length || !all.length) return given;
  const address = list(data.nodes).find((n) => typeof n.address === "string")?.address || "HOST:PORT";
  return runs(all[0].holders.length, (b) => all[0].holders[b] === 0).filter((r) => r.key)
    .map((r) => ({ blocks: `${r.first}:${r.end}`, command: `swarm-node --model PATH --blocks ${r.first}:${r.end} --join ${address}` }));
}

function drawGaps(gaps) {
  byId("gaps").hidden = !gaps.length;
  byId("gaps").lastElementChild.replaceChildren(...gaps.map((gap) => {
    const { first, end } = range(gap.blocks);
    const command = typeof gap.command === "string" ? gap.command : "";
    const what = end - first === 1 ? `Block ${first} is` : `Blocks ${first} to ${end - 1} are`;
    return el("div", { class: "gap" }, el("div", {}, `${what} served by no node, so no answer can be computed. A computer that has the model fills the gap with:`),
      command && el("div", { class: "row" }, el("pre", { tabindex: "0", role: "region", "aria-label": "Command" }, el("code", {}, command)), copyButton(() => command, `Copy the command for blocks ${gap.blocks}`)));
  }));
}

/* -- nodes */

// Counted by the node since it started, or measured by the server that made the list.
const observed = (n) => number(n.observed_tokens_per_s) ?? (n.compute_us > 0 && number(n.tokens) !== null ? (n.tokens / n.compute_us) * 1e6 : null);
const freeKv = (n) => number(n.kv_bytes_free) ?? (number(n.kv_bytes_max) === null ? null : n.kv_bytes_max - (number(n.kv_bytes) ?? 0));
const nameOf = (n) => String(n.name || String(n.id || "").slice(0, 8) || "a node without a name");
const isDown = (n) => n.answered === false;

function drawSpan(n, blocks) {
  const span = range(n.blocks);
  if (!span || !blocks) return el("td", {}, n.blocks || "–");
  const bar = el("i");
  bar.style.left = `${(100 * span.first) / blocks}%`;
  bar.style.width = `${(100 * Math.max(0, span.end - span.first)) / blocks}%`;
  return el("td", {}, n.blocks, n.experts ? ` experts ${n.experts}` : "", el("span", { class: "span", "aria-hidden": "true" }, bar));
}

function drawNode(n, data) {
  const state = isDown(n) ? "no reply" : String(n.state || "–");
  const kind = isDown(n) ? "warn" : state === "online" ? "good" : "";
  const sessions = number(n.sessions) === null ? "–" : number(n.sessions_max) === null ? shown(n.sessions) : `${shown(n.sessions)} of ${shown(n.sessions_max)}`;
  const adapters = Array.isArray(n.adapters) ? n.adapters.map((a) => (typeof a === "string" ? a : a?.name)).filter(Boolean).join(", ") : "";
  return el("tr", {},
    el("th", { scope: "row" }, nameOf(n), n.id === data.self && n.id ? " (this node)" : "", " ", el("span", { class: "id" }, String(n.id || "").slice(0, 8))),
    drawSpan(n, number(data.blocks)), el("td", { class: kind }, state), el("td", {}, String(n.device || "–")),
    el("td", { class: "right" }, n.tokens_per_s > 0 ? shown(n.tokens_per_s) : "–"), el("td", { class: "right" }, shown(observed(n), "", 1)),
    el("td", { class: "right" }, sessions), el("td", { class: "right" }, bytes(freeKv(n))), el("td", { class: "right" }, shown(n.rtt_ms, " ms", 1)),
    el("td", {}, String(n.version || "–")), el("td", {}, adapters || "–"));
}

function drawNodes(data) {
  const first = (n) => range(n.blocks)?.first ?? Infinity;
  const nodes = list(data.nodes).sort((a, b) => first(a) - first(b) || nameOf(a).localeCompare(nameOf(b)));
  const heads = [["Node", ""], ["Blocks", ""], ["State", ""], ["Device", ""], ["Claimed", "tokens/s that the node announces"], ["Observed", "tokens per second of computing, counted"],
    ["Sessions", ""], ["Free KV", "memory for keys and values"], ["Distance", "round trip"], ["Version", ""], ["Adapters", ""]];
  const table = el("table", {}, el("thead", {}, el("tr", {}, ...heads.map(([text, title]) => el("th", { scope: "col", title: title || false }, text)))), el("tbody", {}, ...nodes.map((n) => drawNode(n, data))));
  const place = byId("nodes");
  const left = place.firstElementChild?.scrollLeft || 0;
  const focused = place.contains(document.activeElement);
  place.replaceChildren(el("div", { class: "table wide", tabindex: "0", role: "region", "aria-label": "Nodes" }, table));
  place.firstElementChild.scrollLeft = left;
  if (focused) place.firstElementChild.focus();
}

/* -- the page */

function drawErrors(data) {
  const silent = list(data.nodes).filter((n) => isDown(n)).map((n) => ({ node: nameOf(n), error: n.error || "it did not answer" }));
  const said = list(data.errors).map((e) => ({ node: String(e.node || ""), error: String(e.error || e.reason || "failed without a reason") }));
  const all = [...said, ...silent.filter((s) => !said.some((e) => e.node === s.node))];
  byId("errors").hidden = !all.length;
  byId("errors").lastElementChild.replaceChildren(...all.map((e) => el("li", {}, e.node && el("strong", {}, e.node + ": "), e.error)));
}

function drawSummary(data, cover, gaps) {
  const nodes = list(data.nodes);
  const online = nodes.filter((n) => n.state === "online" && !isDown(n));
  const missing = gaps.reduce((sum, g) => sum + range(g.blocks).end - range(g.blocks).first, 0);
  const sessions = nodes.reduce((sum, n) => sum + (number(n.sessions) ?? 0), 0);
  const total = number(data.blocks) ?? cover?.holders.length ?? 0;
  const weakest = cover?.weakest;
  const rate = cover && cover.least >= 0 ? cover.rates[cover.least] : 0;
  const stretch = !cover?.holders.length ? "–" : !weakest ? "even" : weakest.end - weakest.first === 1 ? `block ${weakest.first}` : `blocks ${weakest.first} to ${weakest.end - 1}`;
  const card = (value, what, kind) => el("li", {}, el("strong", { class: kind || false }, value), el("span", {}, what));
  byId("summary").replaceChildren(
    card(`${online.length} of ${nodes.length}`, "nodes online", online.length ? "" : "warn"),
    card(`${Math.max(0, total - missing)} of ${total}`, "blocks served", missing ? "warn" : "good"),
    card(stretch, cover?.holders[cover.least] ? `weakest stretch, ${rate ? shown(rate, " tokens/s") : "speed not measured"}` : "weakest stretch"),
    card(shown(sessions), "open sessions"));
  return missing;
}

// Only a node that shows its own page says it.
function drawGiven(data) {
  const given = data.given && typeof data.given === "object" ? data.given : null;
  byId("given").hidden = !given;
  if (!given) return;
  const parts = [`${shown(given.tokens)} tokens of ${shown(given.sessions)} sessions in ${shown(given.hours, "", 1)} hours`];
  if (given.weights_bytes > 0) parts.push(`${bytes(given.weights_bytes)} of the model's files`);
  if (given.relayed_bytes > 0) parts.push(`${bytes(given.relayed_bytes)} passed on for other nodes`);
  byId("given").textContent = `This node gave since its start: ${parts.join(", ")}.`;
}

let missingBefore = null;

function draw(data) {
  const id = data.model?.id;
  const nothing = { model: id, nodes_per_block: Array(Math.min(CELLS_MAX, Math.max(0, number(data.blocks) ?? 0))).fill(0) };
  const given = list(data.coverage);
  const all = (given.length ? given : [nothing]).map(coverageOf).sort((a, b) => (b.model === id) - (a.model === id));
  const names = new Map(list(data.nodes).filter((n) => n.model_name).map((n) => [n.model, String(n.model_name)]));
  data.blocks = number(data.blocks) ?? number(data.model?.blocks) ?? all[0]?.holders.length ?? null;
  const gaps = gapsOf(data, all);
  byId("model").textContent = String(data.model?.name || names.get(all[0]?.model) || "The swarm");
  byId("to-chat").hidden = Boolean(data.self); // a node has no chat
  const missing = drawSummary(data, all[0], gaps);
  drawGiven(data);
  drawGaps(gaps);
  drawCoverage(all, names);
  drawNodes(data);
  drawErrors(data);
  if (missingBefore !== null && missing !== missingBefore) announce(missing ? `${count(missing, "block")} not served.` : "All blocks are served.");
  missingBefore = missing;
}

let pause = EVERY_MS, timer = 0, last = "";

async function refresh() {
  clearTimeout(timer);
  if (document.hidden) return; // visibilitychange goes on
  try {
    draw(await getJson("/api/swarm", { signal: AbortSignal.timeout(20000) }));
    last = new Date().toLocaleTimeString();
    pause = EVERY_MS;
    byId("problem").hidden = true;
  } catch (error) {
    const why = error.status === 401 ? "This server asks for an API key: give it on the chat page, in this tab." : error.message;
    byId("problem").textContent = why + (last ? ` What you see is of ${last}.` : "");
    byId("problem").hidden = false;
    byId("to-chat").hidden &&= error.status !== 401;
    pause = Math.min(pause * 2, EVERY_MS_MAX);
  }
  byId("updated").textContent = last ? `as of ${last}` : "no answer yet";
  clearTimeout(timer);
  timer = setTimeout(refresh, pause);
}

document.addEventListener("visibilitychange", refresh);
refresh();
