// A conversation: {id, title, system, created, changed, leaf, messages: [{id, parent, role, content, created, ...}]}. Messages are a tree
// in the order in which they were made, which `created` keeps; `leaf` is the last message of the branch that is shown.

export const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");

export function create(system) {
  const now = Date.now();
  return { id: newId(), title: "", system, created: now, changed: now, leaf: null, messages: [] };
}

export const message = (conversation, id) => conversation.messages.find((m) => m.id === id);
export const siblings = (conversation, of) => conversation.messages.filter((m) => m.parent === of.parent);

// The messages from the first one to the leaf.
export function branch(conversation, leaf = conversation.leaf) {
  const all = new Map(conversation.messages.map((m) => [m.id, m]));
  const path = [];
  for (let m = all.get(leaf); m; m = all.get(m.parent)) path.push(m);
  return path.reverse();
}

// Shows the newest branch through a message.
export function showThrough(conversation, id) {
  let leaf = id;
  for (let next; (next = conversation.messages.findLast((m) => m.parent === leaf)); ) leaf = next.id;
  conversation.leaf = leaf;
}

export function add(conversation, parent, role, content) {
  const made = { id: newId(), parent, role, content, created: Math.max(Date.now(), (conversation.messages.at(-1)?.created ?? 0) + 1) };
  conversation.messages.push(made);
  conversation.leaf = made.id;
  conversation.changed = made.created;
  return made;
}

// Gives the messages of a list in their order times that rise, whatever they say, so that a sort by time keeps the order.
export function inOrder(messages) {
  let last = 0;
  for (const m of messages) last = m.created = Math.max(last + 1, Math.min(Math.trunc(m.created) || 0, Date.now()));
  return messages;
}

// Puts messages of another copy of the conversation among those that are here. One that is in both keeps its place, and becomes what
// `replaces(here, there)` lets it become. Gives those that are new here or were changed.
export function merge(conversation, messages, replaces) {
  const here = new Map(conversation.messages.map((m) => [m.id, m]));
  const changed = [];
  for (const there of messages) {
    const m = here.get(there.id);
    if (!m) {
      const made = { ...there, created: Math.max(there.created, (here.get(there.parent)?.created ?? 0) + 1) };
      conversation.messages.push(made);
      here.set(made.id, made);
      changed.push(made);
    } else if (replaces(m, there)) {
      const { parent, role, created } = m;
      for (const name of Object.keys(m)) delete m[name];
      Object.assign(m, there, { parent, role, created });
      changed.push(m);
    }
  }
  conversation.messages.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
  return changed;
}

// Shows what another copy shows if that goes on from what is shown here.
export function follow(conversation, leaf) {
  if (branch(conversation, leaf).some((m) => m.id === conversation.leaf)) conversation.leaf = leaf;
}
