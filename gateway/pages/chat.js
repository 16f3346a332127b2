// The chat: which conversation is in front, sending and stopping, the list of conversations, keys.
import { changeSettings, ask, settings, showHelp } from "./dialogs.js";
import { announce, byId, el } from "./dom.js";
import { drawMessage, updateMessage } from "./message.js";
import * as store from "./store.js";
import { getJson, setApiKey, streamAnswer } from "./stream.js";

const DRAW_MS = 80; // of an answer that grows: as often as an eye follows
const SAVE_MS = 1000;
const FILE_BYTES_MAX = 64 << 20;

let current = null; // the conversation in front; stored when it has a message
let answering = null; // {conversation, message, abort}
const [messages, input] = [byId("messages"), byId("input")];

/* -- the conversation in front */

const isStored = () => store.conversations.has(current.id);
const draftName = () => "draft." + (isStored() ? current.id : "new");

function openConversation(conversation) {
  current = conversation || store.create(settings().system);
  history.replaceState(null, "", isStored() ? "#" + current.id : location.pathname);
  input.value = store.readText(draftName());
  showProblem("");
  closeMenu();
  draw();
  drawList();
  grow();
  messages.parentElement.scrollTop = messages.parentElement.scrollHeight;
  input.focus();
}

function draw() {
  const { id, action } = focusedButton();
  const locked = Boolean(answering);
  byId("title").textContent = current.title || "New conversation";
  document.title = (current.title ? current.title + " · " : "") + "swarm chat";
  const shown = store.branch(current).map((m) => {
    const all = store.siblings(current, m);
    const article = drawMessage(m, { edit, regenerate, turn }, { index: all.indexOf(m), count: all.length }, locked);
    if (answering?.message === m) updateMessage(article, m, true);
    return article;
  });
  if (!shown.length) shown.push(el("p", { class: "empty" }, "Ask something. The answer is computed by the nodes of the ", el("a", { href: "/swarm" }, "swarm"), "."));
  messages.replaceChildren(...shown);
  byId("send").hidden = locked;
  byId("stop").hidden = !locked;
  if (!id) return;
  const button = messages.querySelector(`[data-id="${id}"] [data-action="${action}"]`);
  (button?.disabled ? button.parentElement.querySelector("button:enabled") : button)?.focus();
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
  const isNew = !isStored();
  store.writeText(draftName(), "");
  input.value = "";
  grow();
  const question = store.add(current, current.leaf, "user", text);
  if (isNew) {
    current.title = text.replace(/\s+/g, " ").slice(0, 60);
    history.replaceState(null, "", "#" + current.id);
  }
  await store.save(current);
  await answer(question.id);
}

function requestBody(conversation, parent) {
  const path = store.branch(conversation, parent).filter((m) => m.content).map(({ role, content }) => ({ role, content }));
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
async function answer(parent) {
  const conversation = current;
  if (!byId("model").value) await loadModels(); // the server was not there when the page was opened
  const body = requestBody(conversation, parent);
  const m = store.add(conversation, parent, "assistant", "");
  const abort = new AbortController();
  m.end = "interrupted"; // what holds if this page is closed before the end
  m.model = body.model;
  answering = { conversation, message: m, abort };
  store.writing.add(conversation.id);
  draw();
  drawList();
  scrollDown(true);
  announce("The answer begins.");
  const timers = [setInterval(drawAnswer, DRAW_MS), setInterval(() => store.save(conversation), SAVE_MS)];
  let status = 0;
  try {
    await streamAnswer(body, abort.signal, taker(m));
  } catch (error) {
    if (error.name === "AbortError") m.end = "stopped";
    else [m.end, m.error, status] = ["failed", error.message, error.status];
  }
  if (m.end === "interrupted") delete m.end;
  timers.forEach(clearInterval);
  answering = null;
  store.writing.delete(conversation.id);
  if (store.conversations.has(conversation.id)) await store.save(conversation);
  if (conversation === current) draw();
  drawList();
  scrollDown();
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
  const follow = isAtEnd();
  updateMessage(article, answering.message, true);
  if (follow) scrollDown(true);
}

const stop = () => answering?.abort.abort();
const scroller = messages.parentElement;
const isAtEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
function scrollDown(always) {
  if (always || isAtEnd()) scroller.scrollTop = scroller.scrollHeight;
}

function regenerate(m) {
  if (!answering) return answer(m.parent);
}

// The message is written again in its place; what it becomes is a new branch beside the old one.
function edit(m) {
  if (answering) return;
  const article = messages.querySelector(`[data-id="${m.id}"]`);
  const box = el("textarea", { rows: "3", "aria-label": "The message, edited" });
  const done = (event) => {
    event?.preventDefault();
    draw();
    messages.querySelector(`[data-id="${m.id}"] [data-action="edit"]`)?.focus();
  };
  const keep = async (event) => {
    event.preventDefault();
    if (answering || !box.value.trim()) return;
    const question = store.add(current, m.parent, "user", box.value.trim());
    await store.save(current);
    input.focus();
    await answer(question.id);
  };
  const form = el("form", { class: "editing", onsubmit: keep, onkeydown: (e) => {
      if (e.key === "Escape") done(e);
      else if (e.key === "Enter" && !e.shiftKey && !e.isComposing) keep(e);
    } }, box,
    el("div", { class: "row end" }, el("button", { type: "button", onclick: done }, "Cancel"), el("button", { class: "primary" }, "Send as a new branch")));
  article.replaceChildren(form);
  box.value = m.content;
  box.focus();
}

async function turn(m, by) {
  const all = store.siblings(current, m);
  const to = all[all.indexOf(m) + by];
  if (!to || answering) return;
  store.showThrough(current, to.id);
  await store.save(current);
  focusNext = to.id;
  draw();
  focusNext = null;
  announce(`Version ${all.indexOf(to) + 1} of ${all.length}.`);
}

/* -- the list of conversations */

function drawList() {
  const found = store.search(byId("search").value);
  byId("list").replaceChildren(...found.map((c) => {
    const title = c.title || "Untitled";
    const tool = (text, label, run) => el("button", { type: "button", class: "small", "aria-label": `${label} “${title}”`, onclick: run }, text);
    return el("li", { class: c.id === current.id ? "current" : false },
      el("button", { type: "button", class: "open", "aria-current": c.id === current.id ? "true" : false, onclick: () => openConversation(c) }, title),
      el("span", { class: "tools" }, tool("Rename", "Rename", () => rename(c)), tool("Export", "Export", () => download([c], title)), tool("Delete", "Delete", () => discard(c))));
  }));
  if (!found.length) byId("list").append(el("li", { class: "hint" }, byId("search").value ? "No conversation holds these words." : "No conversations yet."));
  byId("notice").hidden = store.kept;
  byId("notice").textContent = "This browser does not keep the conversations: they live until the page is closed. Export what you need.";
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
  const address = URL.createObjectURL(new Blob([store.exported(list)], { type: "application/json" }));
  el("a", { href: address, download: `${name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

async function importFile(file) {
  if (!file) return;
  try {
    if (file.size > FILE_BYTES_MAX) throw new Error("it is larger than 64 MiB");
    const { taken, of } = await store.importText(await file.text());
    showProblem("");
    announce(`${taken} of ${of} conversations were imported.`);
  } catch (error) {
    showProblem(`${file.name} was not imported: ${error.message}.`);
  }
  openFromOutside();
}

// Other tabs and imports replace conversations: the one in front is looked up again.
function openFromOutside() {
  if (isStored()) current = store.conversations.get(current.id);
  else if (current.messages.length && !answering) return openConversation(null); // deleted in another tab
  draw();
  drawList();
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
    const names = (Array.isArray(data) ? data : []).map((m) => m?.id).filter((id) => typeof id === "string");
    byId("model").replaceChildren(...names.map((id) => el("option", { value: id }, id)));
    byId("model").value = names.includes(store.readText("model")) ? store.readText("model") : names[0] || "";
    showProblem("");
  } catch (error) {
    if (error.status === 401) return askForKey();
    showProblem(error.message);
  }
}

async function openSettings() {
  const chosen = await changeSettings(current.system);
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

function toggleMenu() {
  const open = document.body.classList.toggle("menu");
  byId("menu").setAttribute("aria-expanded", open);
  if (open) byId("new").focus();
}
function closeMenu() {
  document.body.classList.remove("menu");
  byId("menu").setAttribute("aria-expanded", "false");
}

const lastOf = (role) => store.branch(current).findLast((m) => m.role === role);
function onKey(event) {
  const ctrl = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  const run = () => {
    if (document.querySelector("dialog[open]")) return null;
    if (key === "escape") return answering ? stop : document.body.classList.contains("menu") ? closeMenu : null;
    if (ctrl && event.shiftKey && key === "o") return () => openConversation(null);
    if (ctrl && key === "k") return () => (document.body.classList.add("menu"), byId("search").focus());
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
    new: () => openConversation(null), stop, menu: toggleMenu, "open-settings": openSettings, "open-help": showHelp,
    import: () => byId("file").click(), export: () => download([...store.conversations.values()], "conversations"),
  };
  for (const [id, run] of Object.entries(buttons)) byId(id).addEventListener("click", () => run());
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", () => openConversation(store.conversations.get(location.hash.slice(1))));
  addEventListener("pagehide", () => answering && store.save(answering.conversation));
}

connect();
await store.open(openFromOutside);
openConversation(store.conversations.get(location.hash.slice(1)));
await loadModels();
