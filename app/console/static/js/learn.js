import { call, get, liveJobs } from "./api.js";
import { busy, h, toast } from "./dom.js";
import { compareButton } from "./compare.js";
import { followJob } from "./progress.js";
import { showRecognisers } from "./recognisers.js";
import { followTraining, runningTraining, trainingForm } from "./training.js";

export async function learn(collection, _, signal) {
  const base = `/v1/collections/${encodeURIComponent(collection)}/deployments/identity`;
  const serving = h("section.card", { id: "serving" });
  const run = h("section.card", { id: "run", hidden: true });
  const models = h("section.card", { id: "models" });
  const jobs = h("div", { id: "jobs" });
  const context = { base, jobs, signal };
  const choice = h("section.card", { id: "recognisers" });
  context.refresh = () => Promise.all([showServing(context, serving), showModels(context, models), showRecognisers(collection, context, choice)]);
  const [catalogue] = await Promise.all([get("/v1/methods"), context.refresh()]);
  reattach(collection, context, run).catch((error) => signal.aborted || toast(error.message, true));
  return [h("h1", {}, "Learn"), serving, jobs, choice, trainingForm(collection, catalogue, run, context.refresh, signal), run, models];
}

/** Finds again what was under way when the page was left or loaded anew. */
async function reattach(collection, context, run) {
  const { jobs, refresh, signal } = context;
  const attempt = async (work) => {
    try {
      await work();
      await refresh();
    } catch (error) {
      if (!signal.aborted) toast(error.message, true);
    }
  };
  const [live, training] = await Promise.all([liveJobs(collection), runningTraining(collection)]);
  if (training?.job) attempt(() => followTraining(`/v1/jobs/${training.job}`, training.id, run, signal));
  for (const job of live.filter((j) => j.kind !== "train" && j.kind !== "import" && j.kind !== "erase")) {
    attempt(() => followJob(`/v1/jobs/${job.id}`, jobs, signal));
  }
}

async function showServing({ base, jobs, refresh, signal }, place) {
  const d = await get(base);
  const back = h("button.quiet", { id: "rollback", disabled: !d.previous, onclick: () => busy(back, async () => {
    const answer = await call("POST", `${base}:rollback`);
    if (answer.status === 202) await followJob(answer.headers.get("Location"), jobs, signal, "Rolling back");
    toast("Rolled back");
    await refresh();
  }) }, "Roll back");
  place.replaceChildren(h("h2", {}, "Serving now"), h("div.row", {},
    h("div", {}, h("div.soft", {}, "model"), h("code", { id: "champion" }, d.champion)),
    h("div", {}, h("div.soft", {}, "one step back"), h("code", {}, d.previous || "–")), back));
}

async function showModels({ base, jobs, refresh, signal }, place) {
  const { models } = await get("/v1/models", { limit: 100 });
  const { champion } = await get(base);
  const compared = h("div", { id: "compared" });
  const publish = (model) => (event) => busy(event.currentTarget, async () => {
    const answer = await call("POST", `${base}:publish`, { json: { model } });
    if (answer.status === 202) await followJob(answer.headers.get("Location"), jobs, signal, `Publishing ${model}`);
    toast("Published");
    await refresh();
  });
  const actions = (m) => (m.id === champion ? h("span.tag.good", {}, "serving")
    : h("div.row", {}, compareButton(base, m.id, compared, signal),
      h("button.quiet", { "data-model": m.id, onclick: publish(m.id) }, "Publish")));
  place.replaceChildren(h("h2", {}, "Models"), h("table", {}, h("tr", {}, h("th", {}, "id"), h("th", {}, "method"), h("th", {}, "made"), h("th", {}, "")),
    models.slice().reverse().map((m) => h("tr", {}, h("td", {}, h("code", {}, m.id)), h("td", {}, m.method || ""),
      h("td", {}, new Date(1000 * m.created_at).toLocaleString()), h("td", {}, actions(m))))), compared);
}
