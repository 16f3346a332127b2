// Conversations as a file, and back. A file comes from anybody: only what a conversation has is taken of it, each part with its type.
import { inOrder } from "./conversation.js";
import { join } from "./store.js";

const FORMAT = "swarm-conversations";

export function exported(list) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations: list }, null, 1);
}

const isText = (v) => typeof v === "string";
const isId = (v) => isText(v) && /^[0-9a-f]{1,64}$/.test(v); // as newId makes them
const time = (v) => (Number.isFinite(v) ? Math.min(v, Date.now()) : Date.now());

// Keeps of a stranger's message what a message has, each with its type.
function checkedMessage(m, known, where) {
  if (!m || !isId(m.id) || !isText(m.content) || !["user", "assistant"].includes(m.role)) throw new Error(`${where} is not a message`);
  if (known.has(m.id)) throw new Error(`${where} has the id of an earlier one`);
  if (m.parent !== null && !known.has(m.parent)) throw new Error(`${where} answers a message that is not before it`);
  const made = { id: m.id, parent: m.parent, role: m.role, content: m.content, created: time(m.created) };
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
  return { id: c.id, title: text(c.title, 200), system: text(c.system, 1 << 20), created: time(c.created), changed: time(c.changed), leaf: c.leaf, messages: inOrder(messages) };
}

// Takes all conversations of a file, or none. Gives how many brought something, of how many.
export async function importText(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("it is no file that this page exported");
  const all = file.conversations.map((c, i) => checkedConversation(c, i + 1));
  return { taken: await join(all), of: all.length };
}
