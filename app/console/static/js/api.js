const KEY = "likeness-key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

export class Problem extends Error {
  constructor(body, status) {
    super(body.detail || body.title || `The service answered ${status}`);
    this.code = body.code;
    this.status = status;
  }
}

/** fetch with the key; problems become errors with the service's own words. */
export async function call(method, path, { json, body, query, headers } = {}) {
  const url = query ? `${path}?${new URLSearchParams(query)}` : path;
  const sent = { Authorization: `Bearer ${key.get()}`, ...headers };
  if (json !== undefined) sent["Content-Type"] = "application/json";
  const answer = await fetch(url, { method, headers: sent, body: json === undefined ? body : JSON.stringify(json) });
  if (!answer.ok) throw new Problem(await answer.json().catch(() => ({})), answer.status);
  return answer;
}

export const get = async (path, query) => (await call("GET", path, { query })).json();
export const put = async (path, json) => (await call("PUT", path, { json })).json();
export const post = async (path, json) => (await call("POST", path, { json })).json();

export function form(path, file, fields = {}, query = {}) {
  const data = new FormData();
  data.append("file", file, file.name || "photo.png");
  for (const [name, value] of Object.entries(fields)) data.append(name, value);
  return call("POST", path, { body: data, query });
}

const pictures = new Map();

/** An address for an <img>: pictures need the key, so they are fetched once and kept. */
export async function picture(path) {
  if (!pictures.has(path)) {
    pictures.set(path, call("GET", path).then((a) => a.blob()).then((b) => URL.createObjectURL(b)));
  }
  return pictures.get(path);
}

/** Calls `told` with the job at each change, until it has ended; returns it. */
export async function watch(path, told) {
  const answer = await call("GET", `${path}/events`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let job = await get(path);
  told(job);
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events.filter((e) => e.startsWith("data: "))) {
      job = JSON.parse(event.slice(6));
      told(job);
    }
  }
  return job.finished_at ? job : get(path);
}
