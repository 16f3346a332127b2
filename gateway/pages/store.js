// Conversations, kept in this browser: one record each in IndexedDB; drafts and settings in localStorage. Where the browser
// keeps nothing, all lives until the page is closed (`kept` is false).
//
// A conversation: {id, title, system, created, changed, leaf, messages: [{id, parent, role, content, ...}]}. Messages are a tree
// in the order in which they were made; `leaf` is the last message of the branch that is shown.

let db = null;
export let kept = false;
export const conversations = new Map(); // id -> conversation
export const writing = new Set(); // ids of those that get an answer in this tab: what other tabs store does not replace them
const others = "BroadcastChannel" in window ? new BroadcastChannel("swarm") : null; // pages in other tabs

export const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");

const finished = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

export async function open(onChange) {
  try {
    const opening = indexedDB.open("swarm", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
    db = await finished(opening);
    await load();
    kept = true;
  } catch {
    db = null;
  }
  others?.addEventListener("message", async () => {
    await load();
    onChange();
  });
}

async function load() {
  if (!db) return;
  const found = await finished(db.transaction("conversations").objectStore("conversations").getAll());
  for (const id of conversations.keys()) if (!writing.has(id)) conversations.delete(id);
  for (const one of found) if (!writing.has(one.id)) conversations.set(one.id, one);
}

async function write(change) {
  if (!db) return;
  try {
    await finished(change(db.transaction("conversations", "readwrite").objectStore("conversations")));
    others?.postMessage("changed");
  } catch {
    kept = false; // the disk is full, or the user took the permission
  }
}

export function save(conversation) {
  conversations.set(conversation.id, conversation);
  return write((all) => all.put(conversation));
}

export function remove(id) {
  conversations.delete(id);
  writeText("draft." + id, "");
  return write((all) => all.delete(id));
}

export function create(system) {
  const now = Date.now();
  return { id: newId(), title: "", system, created: now, changed: now, leaf: null, messages: [] };
}

/* -- the tree */

export const message = (conversation, id) => conversation.messages.find((m) => m.id === id);
export const siblings = (conversation, of) => conversation.messages.filter((m) => m.parent === of.parent);

// The messages from the first one to the leaf.
export function branch(conversation, leaf = conversation.leaf) {
  const path = [];
  for (let m = message(conversation, leaf); m; m = message(conversation, m.parent)) path.unshift(m);
  return path;
}

// Shows the newest branch through a message.
export function showThrough(conversation, id) {
  let leaf = id;
  for (let next; (next = conversation.messages.findLast((m) => m.parent === leaf)); ) leaf = next.id;
  conversation.leaf = leaf;
}

export function add(conversation, parent, role, content) {
  const made = { id: newId(), parent, role, content, created: Date.now() };
  conversation.messages.push(made);
  conversation.leaf = made.id;
  conversation.changed = made.created;
  return made;
}

// The conversations whose title or text holds the words, the newest first.
export function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (c) => {
    const text = [c.title, ...c.messages.map((m) => m.content)].join("\n").toLowerCase();
    return wanted.every((w) => text.includes(w));
  };
  return [...conversations.values()].filter(holds).sort((a, b) => b.changed - a.changed);
}

/* -- export and import */

const FORMAT = "swarm-conversations";

export function exported(list) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations: list }, null, 1);
}

const isText = (v) => typeof v === "string";
const isId = (v) => isText(v) && /^[0-9a-f]{1,64}$/.test(v); // as newId makes them
const whole = (v) => (Number.isFinite(v) ? v : Date.now());

// Keeps of a stranger's message what a message has, each with its type.
function checkedMessage(m, known, where) {
  if (!m || !isId(m.id) || !isText(m.content) || !["user", "assistant"].includes(m.role)) throw new Error(`${where} is not a message`);
  if (known.has(m.id)) throw new Error(`${where} has the id of an earlier one`);
  if (m.parent !== null && !known.has(m.parent)) throw new Error(`${where} answers a message that is not before it`);
  const made = { id: m.id, parent: m.parent, role: m.role, content: m.content, created: whole(m.created) };
  for (const name of ["reasoning", "error", "end", "model"]) if (isText(m[name])) made[name] = m[name];
  for (const name of ["tokens", "rate"]) if (Number.isFinite(m[name])) made[name] = m[name];
  if (m.swarm && typeof m.swarm === "object") made.swarm = m.swarm; // drawn with the care that a server's answer needs
  return made;
}

function checkedConversation(c, number) {
  const where = `conversation ${number}`;
  if (!c || !isId(c.id) || !Array.isArray(c.messages)) throw new Error(`${where} has no id or no messages`);
  const known = new Set();
  const messages = c.messages.map((m, i) => {
    const made = checkedMessage(m, known, `message ${i + 1} of ${where}`);
    known.add(made.id);
    return made;
  });
  if (c.leaf !== null && !known.has(c.leaf)) throw new Error(`${where} ends with a message that it does not have`);
  const text = (v, max) => (isText(v) ? v.slice(0, max) : "");
  return { id: c.id, title: text(c.title, 200), system: text(c.system, 1 << 20), created: whole(c.created), changed: whole(c.changed), leaf: c.leaf, messages };
}

// Takes all conversations of a file, or none. Of one that is here too, the newer stays. Returns how many are new or newer.
export async function importText(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("it is no file that this page exported");
  const all = file.conversations.map((c, i) => checkedConversation(c, i + 1));
  const newer = all.filter((c) => !(conversations.get(c.id)?.changed >= c.changed));
  for (const c of newer) await save(c);
  return { taken: newer.length, of: all.length };
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
