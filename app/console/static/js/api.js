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
    this.body = body;
  }
}

/** fetch with the key; problems become errors with the service's own words. */
export async function call(method, path, { json, body, query, headers, signal } = {}) {
  const url = query ? `${path}?${parameters(query)}` : path;
  const sent = { Authorization: `Bearer ${key.get()}`, ...headers };
  if (json !== undefined) sent["Content-Type"] = "application/json";
  const answer = await fetch(url, { method, headers: sent, signal, body: json === undefined ? body : JSON.stringify(json) });
  if (!answer.ok) throw new Problem(await answer.json().catch(() => ({})), answer.status);
  return answer;
}

/** A list stands for a parameter that is given several times. */
function parameters(query) {
  const pairs = Object.entries(query).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  return new URLSearchParams(pairs);
}

export const get = async (path, query, signal) => (await call("GET", path, { query, signal })).json();
export const put = async (path, json) => (await call("PUT", path, { json })).json();
export const post = async (path, json) => (await call("POST", path, { json })).json();

export function form(path, file, fields = {}, query = {}, signal = undefined) {
  const data = new FormData();
  data.append("file", file, file.name || "photo.png");
  for (const [name, value] of Object.entries(fields)) data.append(name, value);
  return call("POST", path, { body: data, query, signal });
}

const pictures = new Map();

/** An address for an <img>: pictures need the key, so they are fetched, once for a view. One that failed is fetched again. */
export function picture(path) {
  if (!pictures.has(path)) {
    const fetched = call("GET", path).then((answer) => answer.blob()).then(encode);
    pictures.set(path, fetched);
    fetched.catch(() => { if (pictures.get(path) === fetched) pictures.delete(path); });
  }
  return pictures.get(path);
}

/** The blob as an address that holds its bytes: nothing of it is left once no element has it. */
function encode(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Drops all pictures when a view is left: the next view may be shown to another key, and faces are erased meanwhile. */
export function dropPictures() {
  pictures.clear();
}

/** Calls `told` with the job at each change, until it has ended or the signal aborts; returns it. */
export async function watch(path, told, signal) {
  const answer = await call("GET", `${path}/events`, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let job = await get(path, undefined, signal);
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
  return job.finished_at ? job : get(path, undefined, signal);
}

/** The jobs of a collection that have not ended, oldest first. */
export async function liveJobs(collection, query = {}) {
  const wanted = { collection, state: ["queued", "running"], order: "oldest", limit: 20, ...query };
  return (await get("/v1/jobs", wanted)).jobs;
}
