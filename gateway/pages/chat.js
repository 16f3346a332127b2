// The chat: which conversation is in front, sending and stopping, the list of conversations, keys.
import { exported, importText } from "./archive.js";
import { add, branch, create, showThrough, siblings } from "./conversation.js";
import { changeSettings, ask, settings, showHelp } from "./dialogs.js";
import { announce, byId, el } from "./dom.js";
import { closeDrawer, openDrawer } from "./drawer.js";
import { drawMessage, updateMessage } from "./message.js";
import * as store from "./store.js";
import { getJson, setApiKey, streamAnswer } from "./stream.js";

const DRAW_MS = 80; // of an answer that grows: as often as an eye follows
const SAVE_MS = 1000;
const FILE_BYTES_MAX = 64 << 20;

let current = null; // the conversation in front; stored when it has a message
let answering = null; // {conversation, message, abort}
let editing = null; // the id of a message that is written again
const drawn = new Map(); // id of a message in front -> {article, key}: what stays as long as the key does
let models = []; // as the server lists them
const [messages, input] = [byId("messages"), byId("input")];

/* -- the conversation in front */

const isStored = () => store.conversations.has(current.id);
const draftName = () => "draft." + (isStored() ? current.id : "new");

function openConversation(conversation) {
  current = conversation || create(settings().system);
  history.replaceState(null, "", isStored() ? "#" + current.id : location.pathname);
  input.value = store.readText(draftName());
  editing = null;
  drawn.clear();
  showProblem("");
  closeDrawer();
  draw();
  drawList();
  grow();
  scrollDown();
  input.focus();
}

function draw() {
  const { id, action } = focusedButton();
  const locked = Boolean(answering);
  byId("title").textContent = current.title || "New conversation";
  document.title = (current.title ? current.title + " · " : "") + "swarm chat";
  const path = branch(current);
  if (!path.some((m) => m.id === editing)) editing = null;
  const shown = path.map(articleOf);
  if (!shown.length) shown.push(el("p", { class: "empty" }, "Ask something. The answer is computed by the nodes of the ", el("a", { href: "/swarm" }, "swarm"), "."));
  for (const old of [...messages.children]) if (!shown.includes(old)) old.remove();
  shown.forEach((article, i) => messages.children[i] === article || messages.insertBefore(article, messages.children[i] || null));
  for (const button of messages.querySelectorAll("[data-action]")) button.disabled = locked || button.hasAttribute("data-end");
  byId("send").hidden = locked;
  byId("stop").hidden = !locked;
  if (!id) return;
  const button = messages.querySelector(`[data-id="${id}"] [data-action="${action}"]`);
  (button?.disabled ? button.parentElement.querySelector("button:enabled") : button)?.focus();
}

// The article of a message: the one that is there, so that a selection, the focus and a form for editing stay in it.
function articleOf(m) {
  const all = siblings(current, m);
  const key = `${all.indexOf(m)} of ${all.length}`;
  let { article, key: old } = drawn.get(m.id) || {};
  if (article && editing === m.id) return article;
  if (old !== key) article = drawMessage(m, { edit, regenerate, turn }, { index: all.indexOf(m), count: all.length });
  drawn.set(m.id, { article, key });
  updateMessage(article, m, answering?.message === m ? "here" : store.isMadeElsewhere(m) ? "elsewhere" : "");
  return article;
}

// A button of a message keeps the focus when the messages are drawn anew; turning to another version, its neighbour has it.
function focusedButton() {
  const button = document.activeElement?.closest("#messages [data-action]");
  return button ? { id: focusNext || button.closest("[data-id]").dataset.id, action: button.dataset.action } : {};
}
let focusNext = null;

function showProblem(sentence) {
  byId("problem").textContent = sentence;
  byId("problem").hidden = !sentence;
}

/* -- answers */

async function send() {
  const text = input.value.trim();
  if (!text || answering) return;
  const [conversation, isNew] = [current, !isStored()];
  store.writeText(draftName(), "");
  input.value = "";
  grow();
  const question = add(current, current.leaf, "user", text);
  if (isNew) {
    current.title = text.replace(/\s+/g, " ").slice(0, 60);
    history.replaceState(null, "", "#" + current.id);
  }
  if (await store.save(conversation, question)) return answer(conversation, question.id);
  input.value ||= text; // another tab has deleted the conversation
  grow();
}

// What the model is shown. Of an answer without text nothing is: the questions around it become one, as templates want roles in turn.
function turns(conversation, parent) {
  const path = [];
  for (const { role, content } of branch(conversation, parent)) {
    if (!content) continue;
    if (path.at(-1)?.role === role) path.at(-1).content += "\n\n" + content;
    else path.push({ role, content });
  }
  return path;
}

function requestBody(conversation, parent) {
  const path = turns(conversation, parent);
  if (conversation.system.trim()) path.unshift({ role: "system", content: conversation.system });
  return {
    ...settings().options,
    model: byId("model").value || undefined,
    messages: path,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
}

// Makes an answer to the message with the id `parent`.
async function answer(conversation, parent) {
  if (!byId("model").value) await loadModels(); // the server was not there when the page was opened
  const body = requestBody(conversation, parent);
  const m = add(conversation, parent, "assistant", "");
  const abort = new AbortController();
  m.end = "interrupted"; // what holds if this page is closed before the end
  m.model = body.model;
  answering = { conversation, message: m, abort };
  store.making.add(m.id);
  store.save(conversation, m);
  draw();
  drawList();
  scrollDown();
  announce("The answer begins.");
  const timers = [setInterval(drawAnswer, DRAW_MS), setInterval(() => store.save(conversation, m), SAVE_MS)];
  let status = 0;
  try {
    await streamAnswer(body, abort.signal, taker(m));
  } catch (error) {
    if (error.name === "AbortError") m.end = "stopped";
    else [m.end, m.error, status] = ["failed", error.message, error.status];
  }
  if (m.end === "interrupted") delete m.end;
  timers.forEach(clearInterval);
  if (store.conversations.has(conversation.id)) await store.save(conversation, m);
  store.making.delete(m.id);
  answering = null;
  drawAgain();
  announce(m.error || (m.end === "stopped" ? "Stopped." : "Answer: " + m.content));
  if (status === 401) await askForKey();
}

// Puts chunks into the message. tokens/s: of the tokens after the first one, whose time is the prompt's.
function taker(m) {
  let first = 0;
  let before = 0;
  return (chunk) => {
    const choice = chunk.choices?.[0];
    const delta = choice?.delta || {};
    if (typeof delta.content === "string") m.content += delta.content;
    if (typeof delta.reasoning_content === "string") m.reasoning = (m.reasoning || "") + delta.reasoning_content;
    if (choice?.finish_reason === "length") m.end = "length";
    if (chunk.swarm) m.swarm = chunk.swarm;
    if (Number.isFinite(chunk.usage?.completion_tokens)) m.tokens = chunk.usage.completion_tokens;
    else if (delta.content || delta.reasoning_content) m.tokens = (m.tokens || 0) + 1;
    if (!first && m.tokens) [first, before] = [performance.now(), m.tokens];
    const seconds = (performance.now() - first) / 1000;
    if (m.tokens > before && delta.content !== undefined && seconds > 0) m.rate = (m.tokens - before) / seconds;
  };
}

function drawAnswer() {
  if (answering?.conversation !== current) return;
  const article = messages.querySelector(`[data-id="${answering.message.id}"]`);
  if (!article) return;
  updateMessage(article, answering.message, "here");
}

const stop = () => answering?.abort.abort();

/* -- the view stays at the end while an answer grows, until a reader scrolls up */

const scroller = messages.parentElement;
let following = true;
let seenTop = 0;

function scrollDown() {
  following = true;
  scroller.scrollTop = scroller.scrollHeight;
}

const isGrowing = () => messages.querySelector(".live") !== null;

function drawAgain() {
  const stays = following && isGrowing();
  draw();
  drawList();
  if (stays) scrollDown();
}

function followScroll() {
  const isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  if (isAtEnd) following = true;
  else if (scroller.scrollTop < seenTop) following = false;
  seenTop = scroller.scrollTop;
}

/* -- other versions of messages */

function regenerate(m) {
  if (!answering) return answer(current, m.parent);
}

function endEdit() {
  drawn.delete(editing);
  editing = null;
  draw();
}

// The message is written again in its place; what it becomes is a new branch beside the old one.
function edit(m) {
  if (answering) return;
  if (editing) endEdit();
  editing = m.id;
  const { article } = drawn.get(m.id);
  const box = el("textarea", { rows: "3", "aria-label": "The message, edited" });
  const done = (event) => {
    event.preventDefault();
    endEdit();
    messages.querySelector(`[data-id="${m.id}"] [data-action="edit"]`)?.focus();
  };
  const keep = async (event) => {
    event.preventDefault();
    if (answering || !box.value.trim()) return;
    endEdit();
    const conversation = current;
    const question = add(conversation, m.parent, "user", box.value.trim());
    if (!(await store.save(conversation, question))) return void (input.value ||= question.content);
    input.focus();
    await answer(conversation, question.id);
  };
  const form = el("form", { class: "editing", onsubmit: keep, onkeydown: (e) => {
      if (e.key === "Escape") (e.stopPropagation(), done(e));
      else if (e.key === "Enter" && !e.shiftKey && !e.isComposing) keep(e);
    } }, box,
    el("div", { class: "row end" }, el("button", { type: "button", onclick: done }, "Cancel"), el("button", { class: "primary" }, "Send as a new branch")));
  article.replaceChildren(form);
  box.value = m.content;
  box.focus();
}

async function turn(m, by) {
  const all = siblings(current, m);
  const to = all[all.indexOf(m) + by];
  if (!to || answering) return;
  showThrough(current, to.id);
  await store.save(current);
  focusNext = to.id;
  draw();
  focusNext = null;
  announce(`Version ${all.indexOf(to) + 1} of ${all.length}.`);
}

/* -- the list of conversations */

let listed = []; // what the list shows: it is drawn anew when that changes, and keeps the focus else
function drawList() {
  const found = store.search(byId("search").value);
  byId("notice").hidden = store.kept;
  byId("notice").textContent = "This browser does not keep the conversations: they live until the page is closed. Export what you need.";
  const now = found.flatMap((c) => [c, c.title, c.id === current.id]);
  if (found.length && now.length === listed.length && now.every((v, i) => v === listed[i])) return;
  listed = now;
  byId("list").replaceChildren(...found.map((c) => {
    const title = c.title || "Untitled";
    const tool = (text, label, run) => el("button", { type: "button", class: "small", "aria-label": `${label} “${title}”`, onclick: run }, text);
    return el("li", { class: c.id === current.id ? "current" : false },
      el("button", { type: "button", class: "open", "aria-current": c.id === current.id ? "true" : false, onclick: () => openConversation(c) }, title),
      el("span", { class: "tools" }, tool("Rename", "Rename", () => rename(c)), tool("Export", "Export", () => download([c], title)), tool("Delete", "Delete", () => discard(c))));
  }));
  if (!found.length) byId("list").append(el("li", { class: "hint" }, byId("search").value ? "No conversation holds these words." : "No conversations yet."));
}

async function rename(c) {
  const title = await ask("The new name of this conversation", { text: c.title, ok: "Rename" });
  if (!title) return;
  c.title = title.slice(0, 200);
  await store.save(c);
  drawList();
  if (c === current) draw();
}

async function discard(c) {
  if (!(await ask(`Delete “${c.title}”? This cannot be undone.`, { ok: "Delete", danger: true }))) return;
  if (answering?.conversation === c) stop();
  await store.remove(c.id);
  if (c.id === current.id) openConversation(null);
  drawList();
}

function download(list, name) {
  const address = URL.createObjectURL(new Blob([exported(list)], { type: "application/json" }));
  el("a", { href: address, download: `${name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

async function importFile(file) {
  if (!file) return;
  try {
    if (file.size > FILE_BYTES_MAX) throw new Error("it is larger than 64 MiB");
    const { taken, of } = await importText(await file.text());
    showProblem("");
    announce(`${taken} of ${of} conversations were imported.`);
  } catch (error) {
    showProblem(`${file.name} was not imported: ${error.message}.`);
  }
  openFromOutside();
}

// Other tabs and imports changed what is stored.
function openFromOutside() {
  if (answering && !store.conversations.has(answering.conversation.id)) stop();
  const stored = store.conversations.get(current.id);
  if (stored && stored !== current) return openConversation(stored);
  if (!stored && current.messages.length) { // deleted in another tab
    const written = input.value;
    openConversation(null);
    input.value ||= written;
    return;
  }
  drawAgain();
}

/* -- the server */

async function askForKey() {
  const key = await ask("This server asks for an API key.", { text: "", ok: "Use this key", secret: true });
  if (!key) return;
  setApiKey(key);
  await loadModels();
}

async function loadModels() {
  try {
    const { data } = await getJson("/v1/models");
    models = (Array.isArray(data) ? data : []).filter((m) => typeof m?.id === "string");
    const names = models.map((m) => m.id);
    byId("model").replaceChildren(...names.map((id) => el("option", { value: id }, id)));
    byId("model").value = names.includes(store.readText("model")) ? store.readText("model") : names[0] || "";
    showProblem("");
  } catch (error) {
    if (error.status === 401) return askForKey();
    showProblem(error.message);
  }
}

const samplingOf = (model) => model?.default_sampling;

async function openSettings() {
  const chosen = await changeSettings(current.system, samplingOf(models.find((m) => m.id === byId("model").value)));
  if (!chosen) return;
  current.system = chosen.system;
  if (isStored()) await store.save(current);
  await loadModels();
}

/* -- keys and buttons */

function grow() {
  input.style.height = "auto";
  input.style.height = Math.min(input.scrollHeight + 2, innerHeight / 3) + "px";
}

const lastOf = (role) => branch(current).findLast((m) => m.role === role);
function onKey(event) {
  const ctrl = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  const run = () => {
    if (document.querySelector("dialog[open], :popover-open")) return null;
    if (key === "escape") return closeDrawer() ? () => {} : answering ? stop : null;
    if (ctrl && event.shiftKey && key === "o") return () => openConversation(null);
    if (ctrl && key === "k") return () => openDrawer("search");
    if (ctrl && key === ",") return openSettings;
    if (ctrl && key === "/") return showHelp;
    if (event.altKey && key === "r" && lastOf("assistant")) return () => regenerate(lastOf("assistant"));
    if (event.altKey && key === "c" && lastOf("assistant")) return () => messages.querySelector(`[data-id="${lastOf("assistant").id}"] .actions [aria-label="Copy the answer"]`)?.click();
    return null;
  };
  const found = run();
  if (!found) return;
  event.preventDefault();
  found();
}

function onInputKey(event) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !input.value && lastOf("user")) {
    event.preventDefault();
    edit(lastOf("user"));
  }
}

function connect() {
  byId("composer").addEventListener("submit", (event) => (event.preventDefault(), send()));
  input.addEventListener("keydown", onInputKey);
  input.addEventListener("input", () => (store.writeText(draftName(), input.value), grow()));
  byId("search").addEventListener("input", drawList);
  byId("file").addEventListener("change", async () => (await importFile(byId("file").files[0]), (byId("file").value = "")));
  byId("model").addEventListener("change", () => store.writeText("model", byId("model").value));
  const buttons = {
    new: () => openConversation(null), stop, "open-settings": openSettings, "open-help": showHelp,
    import: () => byId("file").click(), export: () => download([...store.conversations.values()], "conversations"),
  };
  for (const [id, run] of Object.entries(buttons)) byId(id).addEventListener("click", () => run());
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => openConversation(store.conversations.get(location.hash.slice(1))));
  addEventListener("pagehide", () => answering && store.saveAtOnce(answering.conversation, answering.message));
  scroller.addEventListener("scroll", followScroll);
  new ResizeObserver(() => following && scrollDown()).observe(scroller);
  new ResizeObserver(() => following && isGrowing() && scrollDown()).observe(messages);
}

connect();
await store.open(openFromOutside, () => showProblem("Close the other tabs with this chat: they run an earlier version of it, and this one waits for them."));
openConversation(store.conversations.get(location.hash.slice(1)));
await loadModels();
