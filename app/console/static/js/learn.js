import { call, get, post, watch } from "./api.js";
import { curve } from "./chart.js";
import { busy, h, percent, toast } from "./dom.js";

const METHODS = [["ldml", "LDML: one learned projection"], ["clml", "CLML: a projection for each region"], ["wpca", "WPCA: no labels needed"]];
const SOURCES = { both: ["subjects", "labels"], labels: ["labels"], subjects: ["subjects"] };

export async function learn(collection) {
  const base = `/v1/collections/${encodeURIComponent(collection)}/deployments/identity`;
  const serving = h("section.card", { id: "serving" });
  const run = h("section.card", { id: "run", hidden: true });
  const models = h("section.card", { id: "models" });
  const refresh = () => Promise.all([showServing(base, serving, refresh), showModels(base, models, refresh)]);
  await refresh();
  return [h("h1", {}, "Learn"), serving, start(collection, run, refresh), run, models];
}

async function showServing(base, place, refresh) {
  const d = await get(base);
  const back = h("button.quiet", { id: "rollback", disabled: !d.previous, onclick: () => busy(back, async () => {
    await call("POST", `${base}:rollback`);
    toast("Rolled back");
    await refresh();
  }) }, "Roll back");
  place.replaceChildren(h("h2", {}, "Serving now"), h("div.row", {},
    h("div", {}, h("div.soft", {}, "model"), h("code", { id: "champion" }, d.champion)),
    h("div", {}, h("div.soft", {}, "one step back"), h("code", {}, d.previous || "–")), back));
}

function start(collection, run, refresh) {
  const method = h("select", { id: "method" }, METHODS.map(([v, t]) => h("option", { value: v }, t)));
  const from = h("select", { id: "from" }, h("option", { value: "both" }, "names and labels"), h("option", { value: "labels" }, "labels alone"), h("option", { value: "subjects" }, "names alone"));
  const dim = h("input", { type: "number", min: 2, max: 512, value: 32, size: 5 });
  const go = h("button", { id: "train" }, "Start training");
  const submit = (event) => {
    event.preventDefault();
    busy(go, async () => {
      const sources = SOURCES[from.value].map((f) => ({ task: "identity", collection, from: f }));
      const answer = await call("POST", "/v1/trainings", { json: { collection, method: method.value, descriptor: "lbp", dim: Number(dim.value), sources } });
      const { training } = await answer.json();
      await follow(answer.headers.get("Location"), training, run);
      await refresh();
    });
  };
  return h("section.card", {}, h("h2", {}, "Train"),
    h("form.row", { onsubmit: submit }, h("label", {}, "Method", method), h("label", {}, "From", from), h("label", {}, "Numbers a face", dim), go));
}

async function follow(path, id, place) {
  const bar = h("progress", {});
  const text = h("p.soft", { id: "training-state" }, "queued");
  const chart = h("div.chart", { id: "curve" });
  place.hidden = false;
  place.replaceChildren(h("h2", {}, "Training"), bar, text, chart);
  let drawing = Promise.resolve();
  const draw = async () => curve(chart, (await get(`/v1/trainings/${id}`)).curve);
  const job = await watch(path, (j) => {
    if (j.progress.total) { bar.max = j.progress.total; bar.value = j.progress.done; }
    text.textContent = j.state;
    drawing = drawing.then(draw).catch(() => {});
  });
  await drawing;
  if (job.problem) {
    text.textContent = job.problem.detail;
    throw new Error(job.problem.detail);
  }
  bar.value = bar.max = 1;
  place.append(report(job.result.report), h("p.soft", { id: "candidate" }, "The candidate is ", h("code", {}, job.result.model)));
}

/** Candidate beside what serves now, on the same people whom neither was fitted on. */
function report(r) {
  if (!r || !r.candidate) return h("p.soft", {}, "Nothing was held out, so there is no report.");
  const row = (name, of) => h("tr", {}, h("td", {}, name), h("td.n", {}, shown(of(r.candidate))), h("td.n", {}, r.current ? shown(of(r.current)) : "–"));
  const shown = (f) => `${percent(f.value)} (${percent(f.low)} to ${percent(f.high)})`;
  return h("table", { id: "report" },
    h("tr", {}, h("th", {}, "on people held out"), h("th.n", {}, "candidate"), h("th.n", {}, "serving now")),
    row("mAP", (x) => x.mean_average_precision), row("right person first", (x) => x.ncall["1"]), row("among the first ten", (x) => x.ncall["10"]));
}

async function showModels(base, place, refresh) {
  const { models } = await get("/v1/models", { limit: 100 });
  const { champion } = await get(base);
  const publish = (model) => (event) => busy(event.currentTarget, async () => {
    const answer = await call("POST", `${base}:publish`, { json: { model } });
    if (answer.status === 202) {
      const job = await watch(answer.headers.get("Location"), () => {});
      if (job.problem) throw new Error([job.problem.detail, ...(job.problem.reasons || [])].join("; "));
    }
    toast("Published");
    await refresh();
  });
  place.replaceChildren(h("h2", {}, "Models"), h("table", {}, h("tr", {}, h("th", {}, "id"), h("th", {}, "method"), h("th", {}, "made"), h("th", {}, "")),
    models.slice().reverse().map((m) => h("tr", {}, h("td", {}, h("code", {}, m.id)), h("td", {}, m.method || ""),
      h("td", {}, new Date(1000 * m.created_at).toLocaleString()),
      h("td", {}, m.id === champion ? h("span.tag.good", {}, "serving") : h("button.quiet", { "data-model": m.id, onclick: publish(m.id) }, "Publish"))))));
}
