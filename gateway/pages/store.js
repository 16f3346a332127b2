// Keeps the conversations in this browser: in IndexedDB a record for each conversation (what it has without its messages) and one for
// each message; drafts and settings in localStorage. Where the browser keeps nothing, all lives until the page is closed (`kept` is false).
//
// Pages in several tabs show the same conversations. Each writes the records that it changes and tells the others, which read them, so
// none takes away what another one wrote. A conversation that another tab deleted is not written again.
import { follow, inOrder, merge } from "./conversation.js";

const ASK_MS = 2000; // how often a page asks for an answer that another tab makes
const UNHEARD_MAX = 3; // so many times without a reply: that tab is closed

let db = null;
let onChange = () => {}; // what is stored was changed by another tab
export let kept = false;
export const conversations = new Map(); // id -> conversation
export const making = new Set(); // ids of messages that this tab makes: what is stored of them is older
const known = new WeakSet(); // conversations that are stored: one that is no longer was deleted
const elsewhere = new Map(); // id of a message that another tab makes -> how often it was asked for since that tab was heard
const others = "BroadcastChannel" in window ? new BroadcastChannel("swarm") : null; // pages in other tabs

const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

// Reads all. changed: runs when another tab has changed something; blocked: when another tab has the form of earlier versions open.
export async function open(changed, blocked) {
  onChange = changed;
  try {
    const opening = indexedDB.open("swarm", 2);
    opening.onupgradeneeded = ({ oldVersion }) => upgrade(oldVersion, opening.result, opening.transaction);
    opening.onblocked = blocked;
    db = await finished(opening);
    db.onversionchange = () => db.close();
    await load();
    kept = true;
  } catch {
    db = null;
  }
  others?.addEventListener("message", ({ data }) => hear(data || {}));
  others?.postMessage({ ask: true });
  setInterval(askOthers, ASK_MS);
}

// Version 1 had the messages in the record of their conversation.
function upgrade(oldVersion, base, transaction) {
  const heads = oldVersion ? transaction.objectStore("conversations") : base.createObjectStore("conversations", { keyPath: "id" });
  const all = base.createObjectStore("messages", { keyPath: ["conversation", "id"] });
  const rewrite = (found) => found.forEach((c) => put(heads, all, c, inOrder(c.messages)));
  if (oldVersion) finished(heads.getAll()).then(rewrite).catch(() => transaction.abort()); // all of them, or they stay as they are
}

function put(heads, all, { messages: _, ...head }, messages) {
  heads.put(head);
  for (const m of messages) all.put({ ...m, conversation: head.id });
}

/* -- other tabs */

// What tabs say: {changed: id of a conversation, or "" for all}, {making: ids of messages}, {ask: true}.
async function hear({ changed, making: ids, ask }) {
  if (ask && making.size) others.postMessage({ making: [...making] });
  for (const id of ids || []) elsewhere.set(id, 0);
  if (changed !== undefined) await load(changed);
  if (!ask) onChange();
}

function askOthers() {
  if (!elsewhere.size) return;
  const silent = [...elsewhere].filter(([, times]) => times >= UNHEARD_MAX);
  for (const [id, times] of elsewhere) elsewhere.set(id, times + 1);
  for (const [id] of silent) elsewhere.delete(id);
  if (silent.length) onChange();
  others.postMessage({ ask: true });
}

export const isMadeElsewhere = (m) => m.end === "interrupted" && elsewhere.has(m.id);

/* -- reading and writing */

const allOf = (id) => IDBKeyRange.bound([id], [id, []]);

// Reads one conversation, or all, into those that are here.
async function load(id) {
  if (!db) return;
  const transaction = db.transaction(["conversations", "messages"]);
  const [heads, messages] = await Promise.all([
    finished(transaction.objectStore("conversations").getAll(id || undefined)),
    finished(transaction.objectStore("messages").getAll(id ? allOf(id) : undefined)),
  ]);
  const found = new Map(heads.map((head) => [head.id, []]));
  for (const { conversation, ...m } of messages) found.get(conversation)?.push(m);
  for (const c of id ? [conversations.get(id)] : [...conversations.values()]) if (c && known.has(c) && !found.has(c.id)) conversations.delete(c.id);
  for (const head of heads) take(head, found.get(head.id));
}

function take(head, messages) {
  const c = conversations.get(head.id) || { ...head, messages: [] };
  conversations.set(c.id, c);
  known.add(c);
  [c.title, c.system, c.changed] = [head.title, head.system, head.changed];
  merge(c, messages, (m) => !making.has(m.id));
  follow(c, head.leaf);
  for (const m of c.messages) if (m.end !== "interrupted") elsewhere.delete(m.id);
}

async function write(changed, run) {
  if (!db) return;
  try {
    const transaction = db.transaction(["conversations", "messages"], "readwrite");
    const done = new Promise((resolve, reject) => ([transaction.oncomplete, transaction.onabort] = [resolve, reject]));
    await Promise.all([run(transaction.objectStore("conversations"), transaction.objectStore("messages")), done]);
    others?.postMessage({ changed, making: [...making] });
  } catch {
    kept = false; // the disk is full, or the user took the permission
  }
}

// Stores what a conversation has besides messages, and those of its messages that are given. false: another tab has deleted it.
export async function save(conversation, ...messages) {
  const { id } = conversation;
  let deleted = false;
  conversations.set(id, conversation);
  await write(id, async (heads, all) => {
    deleted = known.has(conversation) && !(await finished(heads.getKey(id)));
    if (!deleted) put(heads, all, conversation, messages);
  });
  if (deleted && conversations.get(id) === conversation) {
    conversations.delete(id);
    onChange();
  } else if (db && kept && !deleted) known.add(conversation);
  return !deleted;
}

// Stores a message while the page is being closed, when nothing can be awaited.
export function saveAtOnce(conversation, m) {
  if (!db) return;
  const transaction = db.transaction("messages", "readwrite");
  transaction.objectStore("messages").put({ ...m, conversation: conversation.id });
  transaction.commit();
}

export function remove(id) {
  conversations.delete(id);
  writeText("draft." + id, "");
  return write(id, (heads, all) => {
    heads.delete(id);
    all.delete(allOf(id));
  });
}

// Puts conversations of a file among those that are here. Of one that is here too all messages are kept, and what both have is as in
// the newer one. Gives how many brought something.
export async function join(list) {
  const changed = [];
  for (const there of list) {
    const here = conversations.get(there.id);
    const newer = !(here?.changed >= there.changed);
    const messages = here ? merge(here, there.messages, (m) => newer && !making.has(m.id)) : there.messages;
    if (!newer && !messages.length) continue;
    if (here && newer) Object.assign(here, { title: there.title, system: there.system, leaf: there.leaf, changed: there.changed });
    conversations.set(there.id, here || there);
    changed.push([here || there, messages]);
  }
  await write("", (heads, all) => changed.forEach(([c, messages]) => put(heads, all, c, messages)));
  if (db && kept) changed.forEach(([c]) => known.add(c));
  return changed.length;
}

// The conversations whose title or text holds the words, the newest first.
export function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (c) => {
    const text = [c.title, ...c.messages.map((m) => m.content)].join("\n").toLowerCase();
    return wanted.every((w) => text.includes(w));
  };
  return [...conversations.values()].filter((c) => !wanted.length || holds(c)).sort((a, b) => b.changed - a.changed);
}

/* -- small texts */

export function readText(name) {
  try {
    return localStorage.getItem("swarm." + name) || "";
  } catch {
    return "";
  }
}

export function writeText(name, text) {
  try {
    if (text) localStorage.setItem("swarm." + name, text);
    else localStorage.removeItem("swarm." + name);
  } catch {} // a browser that keeps nothing, or is full
}
