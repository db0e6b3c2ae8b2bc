import { dropPictures } from "./api.js";
import { drop, h, toast } from "./dom.js";
import { matches } from "./matches.js";
import { FaceQuery, PhotoQuery } from "./query.js";

const RATES = [["", "as set for the collection"], ["0.001", "1 in 1,000"], ["0.01", "1 in 100"], ["0.05", "1 in 20"]];
const LIMITS = [12, 24, 48, 96];

/** Matches of a dropped photo, or of the enrolled face `faceId`; each can be called the same or not the same. */
export async function search(collection, faceId, signal) {
  const left = h("div", { id: "query" });
  const right = h("div", { id: "matches" }, h("p.soft", {}, "Drop a photo to see who looks like it."));
  const again = () => run(view);
  const fpir = h("select", { id: "fpir", onchange: again }, RATES.map(([v, t]) => h("option", { value: v }, t)));
  const limit = h("select", { id: "limit", onchange: again }, LIMITS.map((n) => h("option", { value: n }, n)));
  const view = {
    collection, base: `/v1/collections/${encodeURIComponent(collection)}`, left, right, query: null, chosen: 0,
    parameters: () => ({ limit: limit.value, ...(fpir.value ? { fpir: fpir.value } : {}) }), running: null,
  };
  const ask = (query) => {
    Object.assign(view, { query, chosen: 0 });
    return run(view);
  };
  signal.addEventListener("abort", () => view.running?.abort());
  const aligned = h("input", { type: "checkbox", id: "query-aligned", onchange: () => {
    if (view.query instanceof PhotoQuery) ask(new PhotoQuery(view.base, view.query.file, aligned.checked));
  } });
  const take = (file) => ask(new PhotoQuery(view.base, file, aligned.checked));
  if (faceId) ask(new FaceQuery(view.base, faceId));
  return [h("h1", {}, `Search ${collection}`), h("div.columns", {},
    h("section.card", {}, h("h2", {}, "Query"), drop("Drop a photo, or click to choose", "image/*", take),
      h("div.row.spaced", {}, h("label", {}, "Strangers who may be given a name", fpir),
        h("label", {}, "Show at most", limit), h("label", {}, "Face crop already", aligned)), left),
    h("section.card", {}, h("h2", {}, "Matches"), right))];
}

/** Searches with the view's query. A search that is still under way is aborted, and its answer never shown. */
async function run(view) {
  if (!view.query) return;
  view.running?.abort();
  const { signal } = (view.running = new AbortController());
  const { query } = view;
  view.right.replaceChildren(h("p.soft", { id: "searching", role: "status" }, "Searching …"));
  try {
    const picture = await query.picture();
    if (signal.aborted) return;
    view.left.replaceChildren(picture);
    const answer = await query.search(view.parameters(), signal);
    if (!signal.aborted) show(view, query, answer, signal);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 404) {  // the face, or its collection, was removed
      dropPictures();
      view.left.replaceChildren();
    }
    view.right.replaceChildren(h("p.problem", { role: "alert" }, error.message));
    toast(error.message, true);
  }
}

function show(view, query, answer, signal) {
  const kept = h("div", { id: "kept" });
  const pick = (number) => {
    view.chosen = number;
    query.mark(number);
    view.right.replaceChildren(...matches(view, query, answer, number, { kept, signal }));
  };
  view.left.replaceChildren(query.drawn(answer.faces, pick), ...query.summary(answer.faces), kept);
  if (answer.faces.length) pick(Math.min(view.chosen, answer.faces.length - 1));
}
