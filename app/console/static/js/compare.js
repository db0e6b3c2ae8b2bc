import { call } from "./api.js";
import { busy, h, percent } from "./dom.js";
import { followJob } from "./progress.js";

/** Measures two models on the collection's own people, and shows them side by side. */
export function compareButton(base, models, place, signal) {
  const button = h("button.quiet", { type: "button", "data-compare": models[0], onclick: () => busy(button, async () => {
    place.replaceChildren();
    const answer = await call("POST", `${base}:compare`, { json: { models } });
    const job = await followJob(answer.headers.get("Location"), place, signal, `Comparing ${models.join(" and ")}`);
    place.replaceChildren(comparison(job.result));
  }) }, "Compare with what serves");
  return button;
}

function comparison(result) {
  return h("pre", { id: "comparison" }, JSON.stringify(result, null, 1));
}
