import { call, form, get, picture, watch } from "./api.js";
import { drop, h, number, toast } from "./dom.js";

const ARCHIVE = /\.(zip|tar|tgz|tar\.gz)$/i;

export async function gallery(collection) {
  const base = `/v1/collections/${encodeURIComponent(collection)}`;
  const shown = await get(base);
  const role = h("select", { id: "role" }, h("option", { value: "gallery" }, "gallery"), h("option", { value: "distractor" }, "distractors (nobody of interest)"));
  const aligned = h("input", { type: "checkbox", id: "aligned" });
  const subject = h("input", { placeholder: "for single photos" });
  const progress = h("div", { id: "progress" });
  const faces = h("div.faces", { id: "faces" });
  const take = async (file) => {
    try {
      if (ARCHIVE.test(file.name)) await archive(base, file, role.value, aligned.checked, progress);
      else await one(base, file, role.value, aligned.checked, subject.value, progress);
      const now = await get(base);
      counts.textContent = `${number(now.face_count)} faces of ${number(now.subject_count)} people`;
      await list(collection, base, faces);
    } catch (error) {
      toast(error.message, true);
    }
  };
  const counts = h("p.soft", { id: "counts" }, `${number(shown.face_count)} faces of ${number(shown.subject_count)} people`);
  list(collection, base, faces).catch((error) => toast(error.message, true));
  return [
    h("h1", {}, collection), counts,
    h("section.card", {},
      h("h2", {}, "Add faces"),
      drop("Drop a zip or tar of <person>/<photo>, or one photo, or click to choose", ".zip,.tar,.tgz,.gz,image/*", take),
      h("div.row", { style: "margin-top:.8rem" }, h("label", {}, "As", role), h("label", {}, "Person", subject), h("label", {}, "Face crops already", aligned)),
      progress),
    h("section.card", {}, h("h2", {}, "Newest faces"), faces),
  ];
}

async function archive(base, file, role, aligned, place) {
  const bar = h("progress", { max: 1 });
  const text = h("p.soft", {}, `sending ${file.name} …`);
  place.replaceChildren(bar, text);
  const answer = await call("POST", `${base}:import`, {
    body: file, query: { role, aligned }, headers: { "Content-Type": "application/octet-stream" },
  });
  const path = answer.headers.get("Location");
  const job = await watch(path, (j) => {
    const { done, failed, total } = j.progress;
    if (total) { bar.max = total; bar.value = done + failed; }
    const rate = j.rate ? ` · ${j.rate.toFixed(0)} a second` : "";
    const left = j.eta_seconds ? ` · ${Math.ceil(j.eta_seconds)} s left` : "";
    text.textContent = `${j.state}: ${number(done)} enrolled, ${number(failed)} refused of ${number(total || 0)}${rate}${left}`;
  });
  if (job.problem) throw new Error(job.problem.detail);
  const { items } = await get(`${path}/items`, { state: "failed", limit: 200 });
  if (items.length) {
    place.append(h("details", { id: "refusals", open: true }, h("summary", {}, `Refused (${number(job.progress.failed)})`),
      h("table", {}, items.map((i) => h("tr", {}, h("td", {}, i.name), h("td", {}, i.reasons.join(", ")))))));
  }
}

async function one(base, file, role, aligned, subject, place) {
  const fields = { role, aligned, ...(subject ? { subject } : {}) };
  const body = await (await form(`${base}/faces`, file, fields)).json();
  place.replaceChildren(h("p", {}, `${body.face_records.length} enrolled`),
    ...body.unindexed_faces.map((u) => h("p.soft", {}, `not enrolled: ${u.reasons.join(", ")}`)));
}

async function list(collection, base, place) {
  const { faces } = await get(`${base}/faces`, { limit: 60 });
  place.replaceChildren(...faces.map((face) => {
    const img = h("img", { alt: face.subject ? face.subject.id : "no name", loading: "lazy" });
    picture(`${base}/faces/${face.face_id}/crop?kind=colour`).then((src) => { img.src = src; }, () => {});
    return h("a", { href: `#/${encodeURIComponent(collection)}/search/${face.face_id}`, title: "search with this face" },
      h("figure", {}, img, h("figcaption", {}, face.subject ? face.subject.id : h("span.tag", {}, face.role))));
  }));
  if (!faces.length) place.replaceChildren(h("p.soft", {}, "No faces yet."));
}
