import { call, form, get, picture, post } from "./api.js";
import { busy, drop, h, percent, toast } from "./dom.js";
import { heat } from "./heat.js";

/** Matches of a dropped photo, or of the enrolled face `faceId`; each can be called the same or not the same. */
export async function search(collection, faceId) {
  const base = `/v1/collections/${encodeURIComponent(collection)}`;
  const left = h("div", { id: "query" });
  const right = h("div", { id: "matches" }, h("p.soft", {}, "Drop a photo to see who looks like it."));
  const fmr = h("select", {}, ["", "0.01", "0.001", "0.0001"].map((v) => h("option", { value: v }, v ? `1 in ${1 / v}` : "show all")));
  const aligned = h("input", { type: "checkbox", id: "query-aligned" });
  const state = { collection, base, left, right, query: () => ({ limit: 12, ...(fmr.value ? { fmr: fmr.value } : {}) }), faceId: null, photo: null };
  const take = (file) => byPhoto(state, file, aligned.checked).catch((e) => toast(e.message, true));
  if (faceId) byFace(state, faceId).catch((e) => toast(e.message, true));
  return [h("h1", {}, `Search ${collection}`), h("div.columns", {},
    h("section.card", {}, h("h2", {}, "Query"), drop("Drop a photo, or click to choose", "image/*", take),
      h("div.row", { style: "margin:.8rem 0" }, h("label", {}, "False matches accepted", fmr), h("label", {}, "Face crop already", aligned)), left),
    h("section.card", {}, h("h2", {}, "Matches"), right))];
}

async function byPhoto(state, file, aligned) {
  state.photo = { file, aligned };
  state.faceId = null;
  const src = URL.createObjectURL(file);
  const image = h("img", { src, alt: "the query photo" });
  await image.decode();
  const asked = { aligned, face_selection: "all" };
  const ask = async (more) => (await form(`${state.base}/search`, file, {}, { ...state.query(), ...asked, ...more })).json();
  const body = await ask({});
  const frame = h("div.photo", {}, image);
  body.faces.forEach((face, i) => {
    const b = face.bounding_box;
    const box = h("button.box", { type: "button", title: `face ${i + 1}`, onclick: () => pick(i) });
    const at = { left: b.x / image.naturalWidth, top: b.y / image.naturalHeight, width: b.width / image.naturalWidth, height: b.height / image.naturalHeight };
    for (const [side, share] of Object.entries(at)) box.style[side] = `${100 * share}%`;
    frame.append(box);
  });
  const pick = (i) => {
    frame.querySelectorAll(".box").forEach((b, j) => b.setAttribute("aria-pressed", j === i));
    state.explained = async () => (await ask({ include: "explanation" })).faces[i].matches;
    matches(state, body, body.faces[i]);
  };
  state.left.replaceChildren(frame, h("p.soft", {}, `${body.faces.length} face${body.faces.length === 1 ? "" : "s"} found`));
  if (body.faces.length) pick(0);
}

async function byFace(state, faceId) {
  state.faceId = faceId;
  const image = h("img", { alt: "the query face", src: await picture(`${state.base}/faces/${faceId}/crop?kind=colour`) });
  state.left.replaceChildren(h("div.photo", {}, image));
  const ask = async (more) => (await call("POST", `${state.base}/faces/${faceId}/search`, { query: { ...state.query(), ...more } })).json();
  state.explained = async () => (await ask({ include: "explanation" })).faces[0].matches;
  const body = await ask({});
  matches(state, body, body.faces[0]);
}

function matches(state, body, face) {
  const others = face.matches.filter((m) => m.face_id !== state.faceId);
  const about = `model ${body.model} · ${body.m} cells probed · ${percent(body.fraction)} of distances computed`;
  state.right.replaceChildren(
    ...(others.length ? others.map((m) => row(state, m)) : [h("p", {}, "Unknown: nothing passes.")]),
    h("p.soft", {}, about));
}

function row(state, match) {
  const image = h("img", { alt: "", loading: "lazy" });
  picture(`${state.base}/faces/${match.face_id}/crop?kind=colour`).then((src) => { image.src = src; }, () => {});
  const meter = h("div.meter", {}, h("i", { style: `width:${match.similarity}%` }));
  const passes = match.passes === null || match.passes === undefined ? null
    : h(`span.tag.${match.passes ? "good" : "warn"}`, {}, match.passes ? "passes" : "below the threshold");
  const say = (same) => (event) => label(state, match, same, event.currentTarget).catch((e) => toast(e.message, true));
  const why = h("div.why");
  const explain = (event) => busy(event.currentTarget, async () => {
    const told = (await state.explained()).find((m) => m.face_id === match.face_id);
    if (!told) throw new Error("this match is gone; search again");
    why.replaceChildren(...await heat(state.base, told));
  });
  return h("div.match", { "data-face": match.face_id }, h("a", { href: `#/${encodeURIComponent(state.collection)}/search/${match.face_id}` }, image),
    h("div", {}, h("strong", {}, match.subject ? match.subject.id : "no name"), " ", passes, meter,
      h("div.soft", {}, `similarity ${match.similarity.toFixed(1)} · distance ${match.distance.toPrecision(4)}`)),
    h("div.row", {}, h("button.good", { onclick: say(true) }, "Same"), h("button.bad", { onclick: say(false) }, "Not the same"),
      h("button.quiet", { onclick: explain }, "Why?")), why);
}

async function label(state, match, same, button) {
  if (!state.faceId) state.faceId = await enrolled(state);
  const said = await post("/v1/labels", { labels: [{ face_a: state.faceId, face_b: match.face_id, task: "identity", same }] });
  if (said.refused.length) throw new Error(said.refused[0].detail);
  button.parentElement.querySelectorAll("button").forEach((b) => b.classList.toggle("said", b === button));
  toast(same ? "Kept: the same person" : "Kept: not the same person");
}

/** A label is about two enrolled faces, so the query photo is enrolled, without a name, at its first label. */
async function enrolled(state) {
  const answer = await form(`${state.base}/faces`, state.photo.file, { aligned: state.photo.aligned }, { max_faces: 1 });
  const body = await answer.json();
  if (!body.face_records.length) throw new Error(`the photo cannot be enrolled: ${body.unindexed_faces.flatMap((u) => u.reasons).join(", ")}`);
  toast("The query photo was enrolled, so that it can be labelled.");
  return body.face_records[0].face_id;
}
