// A message as an article: its text, its reasoning (folded), what the swarm did for it, and its buttons.
import { copyButton, el, formatNumber } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

const ENDS = {
  stopped: "You stopped this answer.",
  interrupted: "This answer was interrupted when the page was closed.",
  length: "The answer ended at the limit of tokens.",
};

// actions: {edit(m), regenerate(m), turn(m, by)}. place: {index, count} among its siblings. Buttons that lead nowhere have data-end.
export function drawMessage(m, actions, place) {
  const mine = m.role === "user";
  const button = (action, label, text, run, end = false) =>
    el("button", { type: "button", class: "small", "data-action": action, "aria-label": label, "data-end": end, onclick: run }, text);
  const article = el("article", { class: m.role, "data-id": m.id, "aria-label": mine ? "You" : "Answer" },
    !mine && el("details", { class: "reasoning", hidden: true }, el("summary", {}, "Reasoning"), el("div", { class: "text" })),
    el("div", { class: mine ? "text plain" : "text" }),
    el("p", { class: "problem", hidden: true }),
    el("p", { class: "facts", hidden: true }),
    el("div", { class: "actions" },
      place.count > 1 && el("span", { class: "versions", role: "group", "aria-label": "Versions" },
        button("previous", "Previous version", "‹", () => actions.turn(m, -1), place.index === 0),
        el("span", {}, `${place.index + 1} / ${place.count}`),
        button("next", "Next version", "›", () => actions.turn(m, 1), place.index === place.count - 1)),
      copyButton(() => m.content, mine ? "Copy the message" : "Copy the answer"),
      mine ? button("edit", "Edit the message: it becomes a new branch", "Edit", () => actions.edit(m))
           : button("regenerate", "Make the answer again", "Regenerate", () => actions.regenerate(m))));
  return article;
}

// Draws what changed. live: "here" or "elsewhere", where the answer is being made, or "".
export function updateMessage(article, m, live) {
  const texts = article.querySelectorAll(".text");
  if (m.role === "user") {
    if (texts[0].textContent !== m.content) texts[0].textContent = m.content;
    return;
  }
  const [reasoning, text] = texts;
  reasoning.parentElement.hidden = !m.reasoning;
  if (m.reasoning) {
    renderMarkdown(reasoning, m.reasoning);
    article.querySelector("summary").textContent = live && !m.content ? "Reasoning…" : "Reasoning";
  }
  renderMarkdown(text, m.content);
  article.classList.toggle("live", Boolean(live));
  article.setAttribute("aria-busy", Boolean(live));
  show(article.querySelector(".problem"), live ? [] : [m.error || ENDS[m.end]]);
  show(article.querySelector(".facts"), facts(m, live));
}

function show(place, parts) {
  const wanted = parts.filter(Boolean);
  place.hidden = !wanted.length;
  place.replaceChildren(...wanted.flatMap((part, i) => (i ? [" · ", part] : [part])));
}

const count = (n, one, many = one + "s") => `${formatNumber(n)} ${n === 1 ? one : many}`;

// Of "NAME@HOST:PORT" the name, of a node without one the address; of an id its beginning.
const hopName = (node) => (node.includes("@") ? node.split("@")[0] || node.slice(1) : node.slice(0, 8)) || "a node";

// The speed, and what only a swarm has. A server that is none sends no `swarm`; each of its fields may be missing.
function facts(m, live) {
  const swarm = m.swarm || {};
  const hops = (Array.isArray(swarm.hops) ? swarm.hops : []).filter((h) => h && typeof h === "object");
  const failovers = Number(swarm.failovers) || 0;
  const laps = Math.round(Number(swarm.laps_saved)) || 0;
  const cached = Number(swarm.cached_tokens) || 0;
  const names = hops.map((h) => `${h.name || hopName(String(h.node || ""))} ${h.blocks || ""}`.trim());
  return [
    live === "elsewhere" && el("span", { class: "waiting" }, "answering in another tab"),
    live === "here" && !m.tokens && el("span", { class: "waiting" }, m.content || m.reasoning ? "answering" : "waiting for the first token"),
    m.tokens > 0 && count(m.tokens, "token"),
    m.rate > 0 && `${formatNumber(m.rate, 1)} tokens/s`,
    names.length > 0 && el("span", { class: "hops", title: "The nodes that computed this answer, with their blocks" }, `${count(names.length, "hop")}: ${names.join(" → ")}`),
    failovers > 0 && el("span", { class: "warn", title: "A node failed and another one continued with the same text" }, `${count(failovers, "failover")} survived`),
    laps > 0 && el("span", { title: "Round trips over all nodes that right draft tokens saved" }, `${count(laps, "lap")} saved`),
    cached > 0 && el("span", { title: "Tokens of the prompt that were not computed again" }, `${count(cached, "cached token")}`),
    swarm.checked === true && el("span", { class: "good", title: "Steps of this answer were computed again by other nodes, with equal results" }, "✓ checked"),
  ];
}
