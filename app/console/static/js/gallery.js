import { call, form, get, liveJobs, picture, watch } from "./api.js";
import { drop, h, number, toast } from "./dom.js";

const ARCHIVE = /\.(zip|tar|tgz|tar\.gz)$/i;

export async function gallery(collection, _, signal) {
  const base = `/v1/collections/${encodeURIComponent(collection)}`;
  const shown = await get(base);
  const role = h("select", { id: "role" }, h("option", { value: "gallery" }, "gallery"), h("option", { value: "distractor" }, "distractors (nobody of interest)"));
  const aligned = h("input", { type: "checkbox", id: "aligned" });
  const subject = h("input", { placeholder: "for single photos" });
  const progress = h("div", { id: "progress" });
  const faces = h("div.faces", { id: "faces" });
  const counts = h("p.soft", { id: "counts" }, `${number(shown.face_count)} faces of ${number(shown.subject_count)} people`);
  const refresh = async () => {
    const now = await get(base, undefined, signal);
    counts.textContent = `${number(now.face_count)} faces of ${number(now.subject_count)} people`;
    await list(collection, base, faces, signal);
  };
  const attempt = async (work) => {
    try {
      await work();
      await refresh();
    } catch (error) {
      if (!signal.aborted) toast(error.message, true);
    }
  };
  const place = () => {
    const part = h("div.job");
    progress.prepend(part);
    return part;
  };
  const take = (file) => attempt(() => (ARCHIVE.test(file.name)
    ? archive(base, file, role.value, aligned.checked, place(), signal)
    : one(base, file, role.value, aligned.checked, subject.value, place())));
  const running = await liveJobs(collection, { kind: "import" });
  for (const job of running) attempt(() => follow(`/v1/jobs/${job.id}`, place(), signal));
  if (!running.length) list(collection, base, faces, signal).catch((error) => signal.aborted || toast(error.message, true));
  return [
    h("h1", {}, collection), counts,
    h("section.card", {},
      h("h2", {}, "Add faces"),
      drop("Drop a zip or tar of <person>/<photo>, or one photo, or click to choose", ".zip,.tar,.tgz,.gz,image/*", take),
      h("div.row.spaced", {}, h("label", {}, "As", role), h("label", {}, "Person", subject), h("label", {}, "Face crops already", aligned)),
      progress),
    h("section.card", {}, h("h2", {}, "Newest faces"), faces),
  ];
}

async function archive(base, file, role, aligned, place, signal) {
  place.replaceChildren(h("progress", { max: 1 }), h("p.soft", {}, `sending ${file.name} …`));
  const answer = await call("POST", `${base}:import`, {
    body: file, query: { role, aligned }, headers: { "Content-Type": "application/octet-stream" },
  });
  await follow(answer.headers.get("Location"), place, signal);
}

/** Shows how far an import is until it has ended, then what was refused of it. */
async function follow(path, place, signal) {
  const bar = h("progress", { max: 1, "aria-label": "import" });
  const text = h("p.soft", {}, "queued");
  place.replaceChildren(bar, text);
  const job = await watch(path, (j) => {
    const { done, failed, total } = j.progress;
    if (total) { bar.max = total; bar.value = done + failed; }
    const rate = j.rate ? ` · ${j.rate.toFixed(0)} a second` : "";
    const left = j.eta_seconds ? ` · ${Math.ceil(j.eta_seconds)} s left` : "";
    text.textContent = `${j.state}: ${number(done)} enrolled, ${number(failed)} refused of ${number(total || 0)}${rate}${left}`;
  }, signal);
  if (job.problem) throw new Error(job.problem.detail);
  const { items } = await get(`${path}/items`, { state: "failed", limit: 200 }, signal);
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

async function list(collection, base, place, signal) {
  const { faces } = await get(`${base}/faces`, { limit: 60, order: "newest" }, signal);
  place.replaceChildren(...faces.map((face) => {
    const img = h("img", { alt: face.subject ? face.subject.id : "no name", loading: "lazy" });
    picture(`${base}/faces/${face.face_id}/crop?kind=colour`).then((src) => { img.src = src; }, () => {});
    return h("a", { href: `#/${encodeURIComponent(collection)}/search/${face.face_id}`, title: "search with this face", "data-face": face.face_id },
      h("figure", {}, img, h("figcaption", {}, face.subject ? face.subject.id : h("span.tag", {}, face.role))));
  }));
  if (!faces.length) place.replaceChildren(h("p.soft", {}, "No faces yet."));
}
