// The dialogs: a question, the settings, the list of shortcuts. A dialog that is closed by Escape was cancelled.
import { byId, formatNumber } from "./dom.js";
import { readText, writeText } from "./store.js";
import { apiKey, setApiKey } from "./stream.js";

function show(dialog) {
  if (dialog.open) return Promise.resolve("");
  const before = document.activeElement;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    const now = document.activeElement;
    if (now === before || now === document.body || dialog.contains(now)) focusAgain(before); // else a key has moved it meanwhile
    resolve(dialog.returnValue);
  }, { once: true }));
}

function focusAgain(element) {
  element.blur(); // Chromium gives the focus back to a text box, but no caret, after a click in the dialog
  (element.checkVisibility() ? element : byId("open-more")).focus();
}

for (const button of document.querySelectorAll("dialog [data-cancel]")) button.addEventListener("click", () => button.closest("dialog").close());

export const showHelp = () => show(byId("help"));

// Asks for a text (with `text`, which may be empty) or for a yes. Gives the text or true; null: cancelled.
export async function ask(question, { text, ok = "OK", danger = false, secret = false } = {}) {
  const input = byId("ask-input");
  byId("ask-text").textContent = question;
  byId("ask-ok").textContent = ok;
  byId("ask-ok").className = danger ? "danger" : "primary";
  input.hidden = text === undefined;
  input.type = secret ? "password" : "text";
  input.value = text || "";
  const shown = show(byId("ask"));
  if (!input.hidden) input.select();
  if ((await shown) !== "ok") return null;
  return input.hidden ? true : input.value.trim();
}

/* -- settings: {system, options: {temperature: 0.7, ...}} */

const fields = () => document.querySelectorAll("#settings [data-option]");

export function settings() {
  let read = null;
  try {
    read = JSON.parse(readText("settings"));
  } catch {} // none yet
  const options = {};
  for (const { dataset } of fields()) {
    const value = read?.options?.[dataset.option];
    if (Number.isFinite(value)) options[dataset.option] = value;
  }
  return { system: typeof read?.system === "string" ? read.system : "", options };
}

// Lets the user change them; `system` is that of the conversation in front, `sampling` what the server does where a request says nothing:
// an empty field shows it, and is not sent. Gives the new settings; null: cancelled.
export async function changeSettings(system, sampling) {
  const { options } = settings();
  byId("system").value = system;
  byId("key").value = apiKey();
  for (const field of fields()) {
    const value = sampling?.[field.dataset.option];
    field.value = options[field.dataset.option] ?? "";
    field.placeholder = Number.isFinite(value) ? formatNumber(value, 6) : "";
  }
  if ((await show(byId("settings"))) !== "ok") return null;
  const chosen = { system: byId("system").value, options: {} };
  for (const field of fields()) if (field.value !== "") chosen.options[field.dataset.option] = Number(field.value);
  writeText("settings", JSON.stringify(chosen));
  setApiKey(byId("key").value.trim());
  return chosen;
}
