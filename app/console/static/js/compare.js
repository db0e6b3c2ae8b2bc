import { call } from "./api.js";
import { busy, h, number, percent } from "./dom.js";
import { followJob } from "./progress.js";

const METRICS = [
  ["mAP", "mAP"], ["1-call@1", "right person first"], ["1-call@10", "right person among the first ten"],
  ["named_rightly", "people named rightly"], ["strangers_named", "strangers given a name"], ["labelled_pairs", "labelled pairs told right"],
];

/** A button that measures `candidate` and what serves on the same people of the collection, and shows both. */
export function compareButton(base, candidate, place, signal) {
  const button = h("button.quiet", { type: "button", "data-compare": candidate, onclick: () => busy(button, async () => {
    place.replaceChildren();
    const answer = await call("POST", `${base}:compare`, { json: { models: ["champion", candidate] } });
    const job = await followJob(answer.headers.get("Location"), place, signal, `Comparing ${candidate} with what serves`);
    place.replaceChildren(comparison(job.result));
  }) }, "Compare");
  return button;
}

/** The result of a comparison: a row a figure, both models, and the difference with its 95 % interval. */
export function comparison({ models: [first, second], difference, measured_on: measured, gate }) {
  const rows = METRICS.filter(([name]) => first[name] && second[name]).map(([name, text]) => h("tr", { "data-metric": name },
    h("td", {}, text), ...[first[name], second[name], difference[name]].map((f) => h("td.n", {}, interval(f)))));
  const whom = measured.unseen_by_both === false ? "one of the models has learned from some of them, so this flatters it" : "neither model has learned from them";
  return h("div", { id: "comparison" }, h("h2", {}, "Side by side"),
    h("p.soft", {}, `${number(measured.people_measured)} people of this collection; ${whom}. In brackets the 95 % interval.`),
    h("table", {}, h("tr", {}, h("th", {}, ""), h("th.n", {}, h("code", {}, first.model)), h("th.n", {}, h("code", {}, second.model)), h("th.n", {}, "difference")), rows),
    gate ? h("p", { id: "gate" }, gate.passed ? "The gate would let it be published." : `The gate would refuse it: ${[...gate.reasons, ...(gate.unclear || [])].join("; ")}`) : null);
}

function interval(figure) {
  if (!figure || figure.value === null) return "–";
  const known = figure.low !== null && figure.high !== null;
  return percent(figure.value) + (known ? ` (${percent(figure.low)} to ${percent(figure.high)})` : "");
}
