import { call, get } from "./api.js";
import { busy, h, number, percent, toast } from "./dom.js";
import { followJob } from "./progress.js";

/** Fills the card from which another recogniser is put to use. */
export async function showRecognisers(collection, { jobs, refresh, signal }, card) {
  const { recognisers } = await get("/v1/recognisers");
  const installed = recognisers.filter((r) => r.installed);
  const serving = recognisers.find((r) => r.serves?.includes(collection));
  const options = installed.map((r) => h("option", { value: r.name, selected: r === serving }, r.name));
  const choice = h("select", { id: "recogniser" }, options);
  const use = h("button", { id: "use-recogniser", onclick: () => busy(use, async () => {
    const path = `/v1/collections/${encodeURIComponent(collection)}:use-recogniser`;
    const answer = await call("POST", path, { json: { recogniser: choice.value } });
    if (answer.status === 202) await followJob(answer.headers.get("Location"), jobs, signal, `Changing to ${choice.value}`);
    toast(`${choice.value} describes the faces now`);
    await refresh();
  }) }, "Use it here");
  card.replaceChildren(h("h2", {}, "Recogniser"),
    h("p.soft", {}, "What describes the faces. Another one describes the stored faces anew: no photo is sent again, and names and labels stay."),
    h("table", {}, h("tr", {}, ["name", "accuracy", "licence", "size", ""].map((t) => h("th", {}, t))), recognisers.map((r) => row(r, r === serving))),
    h("div.row.spaced", {}, h("label", {}, "Recogniser of this collection", choice), use));
}

function row(r, serves) {
  const size = r.bytes ? `${number(Math.round(r.bytes / 1e6))} MB` : "–";
  const state = serves ? h("span.tag.good", {}, "serving") : r.installed ? h("span.tag", {}, "installed") : h("span.soft", {}, `not installed${r.install ? ": " : ""}`, r.install ? h("code", {}, r.install) : null);
  return h("tr", { "data-recogniser": r.name }, h("td", {}, r.name), h("td", {}, accuracy(r.accuracy)), h("td", {}, r.licence || "not known"), h("td", {}, size), h("td", {}, state));
}

function accuracy(measured) {
  if (!measured) return "not measured";
  const { right_first: first, verification, data, by } = measured;
  const figure = first !== null && first !== undefined ? `right person first ${percent(first)}`
    : verification !== null && verification !== undefined ? `pairs judged rightly ${percent(verification)}` : "not measured";
  return `${figure} (${data}${by === "publisher" ? ", as published" : ""})`;
}
