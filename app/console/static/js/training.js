import { call, get, watch } from "./api.js";
import { curve } from "./chart.js";
import { busy, h, percent } from "./dom.js";
import { optionFields } from "./options.js";

const SOURCES = { both: ["subjects", "labels"], labels: ["labels"], subjects: ["subjects"] };

/** The form that starts a training. catalogue: of GET /v1/methods, which says what there is to choose and to set. */
export function trainingForm(collection, { default_method: preset, methods, descriptors }, run, refresh, signal) {
  const options = (pairs, selected) => pairs.map(([value, text = value]) => h("option", { value, selected: value === selected }, text));
  const installed = descriptors.filter((d) => d.installed);
  const method = h("select", { id: "method" }, options(methods.map((m) => [m.name]), preset));
  const from = h("select", { id: "from" }, options([["both", "names and labels"], ["labels", "labels alone"], ["subjects", "names alone"]]));
  const descriptor = h("select", { id: "descriptor" }, options([["", "what serves now"], ...installed.map((d) => [d.name])]));
  const ofMethod = chosenOptions("method-options", method, methods);
  const ofDescriptor = chosenOptions("descriptor-options", descriptor, installed);
  const go = h("button", { id: "train" }, "Start training");
  const submit = (event) => {
    event.preventDefault();
    busy(go, async () => {
      const sources = SOURCES[from.value].map((f) => ({ task: "identity", collection, from: f }));
      const request = { collection, method: method.value, options: ofMethod.values(), sources };
      if (descriptor.value) request.descriptor = { name: descriptor.value, options: ofDescriptor.values() };
      const answer = await call("POST", "/v1/trainings", { json: request });
      const { training } = await answer.json();
      await followTraining(answer.headers.get("Location"), training, run, signal);
      await refresh();
    });
  };
  return h("section.card", {}, h("h2", {}, "Train"), h("form.row", { onsubmit: submit }, h("label", {}, "Method", method), h("label", {}, "From", from),
    h("label", {}, "Described by", descriptor), go, ofMethod.place, ofDescriptor.place));
}

/** What the entry chosen in `select` is, and fields for its options; both follow the choice. */
function chosenOptions(id, select, entries) {
  const place = h("div.figures", { id });
  let fields;
  const show = () => {
    const entry = entries.find((e) => e.name === select.value);
    fields = optionFields(select.value, entry?.options || []);
    place.replaceChildren(...(entry ? [h("p.soft", {}, entry.summary)] : []), ...(fields.node ? [fields.node] : []));
  };
  select.addEventListener("change", show);
  show();
  return { place, values: () => fields.values() };
}

/** The newest training of the collection that has not ended, or undefined. */
export async function runningTraining(collection) {
  const { trainings } = await get("/v1/trainings", { collection, order: "newest", limit: 20 });
  const live = trainings.filter((t) => t.state === "queued" || t.state === "running");
  return live.find((t) => t.state === "running") || live.at(-1);
}

/** Shows a training: its state, its curve as it grows, and the report at the end. */
export async function followTraining(path, id, place, signal) {
  const bar = h("progress", { "aria-label": "training" });
  const text = h("p.soft", { id: "training-state" }, "queued");
  const chart = h("div.chart", { id: "curve" });
  place.hidden = false;
  place.replaceChildren(h("h2", {}, "Training"), bar, text, chart);
  let drawing = Promise.resolve();
  const draw = async () => curve(chart, (await get(`/v1/trainings/${id}`, undefined, signal)).curve);
  const job = await watch(path, (j) => {
    if (j.progress.total) { bar.max = j.progress.total; bar.value = j.progress.done; }
    text.textContent = j.state;
    drawing = drawing.then(draw).catch(() => {});
  }, signal);
  await drawing;
  if (job.problem) {
    text.textContent = job.problem.detail;
    throw new Error(job.problem.detail);
  }
  bar.value = bar.max = 1;
  if (!job.result) return;
  place.append(...choice(job.result.report?.choice), report(job.result.report), h("p.soft", { id: "candidate" }, "The candidate is ", h("code", {}, job.result.model)));
}

/** What an automatic choice took, why, and what it tried; nothing for methods that choose nothing. */
function choice(c) {
  if (!c) return [];
  const points = (gain) => (gain === null ? "–" : `${gain > 0 ? "+" : ""}${(100 * gain).toFixed(1)}`);
  const rows = c.candidates.map((t) => h("tr", {}, h("td", {}, t.name), h("td.n", {}, points(t.gain)), h("td.n", {}, points(t.low)), h("td", {}, t.why)));
  const head = h("tr", {}, h("th", {}, "tried"), h("th.n", {}, "gain in points of mAP"), h("th.n", {}, "at least"), h("th", {}, "verdict"));
  const tried = rows.length ? [h("details", { id: "tried" }, h("summary", {}, "What was tried"), h("table", {}, head, ...rows))] : [];
  return [h("p", { id: "choice" }, c.reason), ...tried];
}

/** Candidate beside what serves now, on the same people whom neither was fitted on. */
function report(r) {
  if (!r || !r.candidate) return h("p.soft", {}, "Nothing was held out, so there is no report.");
  const shown = (f) => `${percent(f.value)} (${percent(f.low)} to ${percent(f.high)})`;
  const row = (name, of) => h("tr", {}, h("td", {}, name), h("td.n", {}, shown(of(r.candidate))), h("td.n", {}, r.current ? shown(of(r.current)) : "–"));
  return h("table", { id: "report" },
    h("tr", {}, h("th", {}, "on people held out"), h("th.n", {}, "candidate"), h("th.n", {}, "serving now")),
    row("mAP", (x) => x.mean_average_precision), row("right person first", (x) => x.ncall["1"]), row("among the first ten", (x) => x.ncall["10"]));
}
