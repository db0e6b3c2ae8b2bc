import { call, get } from "./api.js";
import { busy, h, number, percent, toast } from "./dom.js";
import { followJob } from "./progress.js";

/** What can describe faces, or null where this service does not list it. */
export async function listRecognisers() {
  try {
    return (await get("/v1/recognisers")).recognisers;
  } catch (error) {
    if (error.status === 404 || error.status === 403) return null;
    throw error;
  }
}

/** A card from which another recogniser is put to use. The photos stay; their stored crops are described anew. */
export function recogniserCard(collection, recognisers, refresh, signal) {
  const installed = recognisers.filter((r) => r.installed);
  const choice = h("select", { id: "recogniser" }, installed.map((r) => h("option", { value: r.name }, r.name)));
  const place = h("div", { id: "recogniser-progress" });
  const use = h("button", { id: "use-recogniser", onclick: () => busy(use, async () => {
    const path = `/v1/collections/${encodeURIComponent(collection)}:use-recogniser`;
    const answer = await call("POST", path, { json: { recogniser: choice.value } });
    if (answer.status === 202) await followJob(answer.headers.get("Location"), place, signal, `Changing to ${choice.value}`);
    toast(`${choice.value} describes the faces now`);
    await refresh();
  }) }, "Use it here");
  return h("section.card", { id: "recognisers" }, h("h2", {}, "Recogniser"),
    h("table", {}, h("tr", {}, ["name", "licence", "size", "accuracy", ""].map((t) => h("th", {}, t))), recognisers.map(row)),
    h("div.row.spaced", {}, h("label", {}, "Recogniser", choice), use), place);
}

function row(r) {
  const size = r.bytes ? `${number(Math.round(r.bytes / 1e6))} MB` : "–";
  return h("tr", { "data-recogniser": r.name }, h("td", {}, r.name), h("td", {}, r.licence || "not known"), h("td", {}, size),
    h("td", {}, accuracy(r.accuracy)), h("td", {}, r.installed ? h("span.tag.good", {}, "installed") : h("span.tag", {}, "not installed")));
}

function accuracy(measured) {
  if (measured === null || measured === undefined) return "not measured";
  return typeof measured === "number" ? percent(measured) : String(measured);
}
