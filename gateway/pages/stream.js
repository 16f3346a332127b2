// Talks to the server: requests with the key, errors as sentences, answers that stream (server-sent events over fetch).

const KEY = "swarm.key"; // kept until the tab is closed
let keyHere = ""; // where the browser keeps nothing

export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) || keyHere;
  } catch {
    return keyHere;
  }
}

export function setApiKey(key) {
  keyHere = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {} // it lives in keyHere
}

// What went wrong, as a sentence for people. status: of HTTP; 0: the connection.
export class ServerError extends Error {
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

// A response with a good status. Throws ServerError, or the AbortError of the signal.
export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.Authorization = "Bearer " + apiKey();
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(`The server at ${location.host} cannot be reached: check that it runs, and try again.`);
  }
  if (response.ok) return response;
  throw new ServerError(await refusal(response), response.status);
}

export async function getJson(path, options) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch {
    throw new ServerError(`The server's answer to ${path} is not JSON: another program may listen at ${location.host}.`);
  }
}

async function refusal(response) {
  let said = "";
  try {
    const { error } = await response.json();
    said = sentence(typeof error === "string" ? error : error?.message);
  } catch {} // not in OpenAI's form
  const after = Number(response.headers.get("retry-after"));
  if (response.status === 401) return said || "The server asks for an API key.";
  if (response.status === 429) return (said || "The server is busy.") + (after > 0 ? ` Try again in ${after} seconds.` : " Try again in a moment.");
  return said || `The server refused with HTTP status ${response.status}.`;
}

function sentence(text) {
  const said = String(text || "").trim().slice(0, 2000);
  return said && !/[.!?]$/.test(said) ? said + "." : said;
}

// The data of each event. Comments and other fields are left out.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trimStart();
  }
}

// Streams an answer: onChunk gets each chunk as the server sends it. Throws ServerError, also when the stream ends early.
export async function streamAnswer(body, signal, onChunk) {
  const response = await request("/v1/chat/completions", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  });
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      let chunk;
      try {
        chunk = JSON.parse(data);
      } catch {
        throw new ServerError("The server sent a part of the answer that is not JSON.");
      }
      if (chunk.error) throw new ServerError(sentence(chunk.error.message) || "The server reported an error without a reason.", 500);
      onChunk(chunk);
    }
  } catch (error) {
    if (error instanceof ServerError || error.name === "AbortError") throw error;
    throw new ServerError("The connection to the server was lost before the answer was whole.");
  }
  throw new ServerError("The connection to the server ended before the answer was whole.");
}
