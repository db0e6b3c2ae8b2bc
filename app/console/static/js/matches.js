import { call, picture, post } from "./api.js";
import { busy, h, percent, toast } from "./dom.js";
import { heat } from "./heat.js";
import { grade, verdict } from "./verdict.js";

/** The verdict on one face of the query, and its matches: people first, then faces without a name. */
export function matches(view, query, answer, number, { kept, signal }) {
  const face = answer.faces[number];
  const others = face.matches.filter((m) => m.face_id !== query.faceId);
  const context = { view, query, answer, number, kept, signal };
  const rows = (some) => some.map((m) => row(context, m));
  const people = others.filter((m) => m.subject);
  const nameless = others.filter((m) => !m.subject);
  return [
    verdict(answer, face), ...rows(people),
    nameless.length ? h("details", { id: "nameless", open: !people.length }, h("summary", {}, `Faces without a name (${nameless.length})`), rows(nameless)) : null,
    others.length ? null : h("p.soft", {}, "No face to compare with."),
    h("p.soft", {}, `model ${answer.model} · ${answer.m} cells probed · ${percent(answer.fraction)} of distances computed`),
  ].filter(Boolean);
}

/** One match. Its pictures choose which of a person's faces the buttons speak of. */
function row(context, match) {
  const { view, answer } = context;
  const faces = match.faces?.length ? match.faces : [match];
  const image = h("img", { alt: "", loading: "lazy" });
  const link = h("a", { title: "search with this face" }, image);
  const why = h("div.why");
  const buttons = h("div.row");
  let chosen;
  const choose = (face) => {
    chosen = face;
    link.href = `#/${encodeURIComponent(view.collection)}/search/${face.face_id}`;
    show(image, view, face);
    thumbs.querySelectorAll("button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.face === face.face_id)));
    buttons.querySelectorAll("button").forEach((b) => b.classList.remove("said"));
    why.replaceChildren();
  };
  const thumbs = h("div.thumbs", {}, faces.length < 2 ? [] : faces.slice(0, 8).map((face, i) => {
    const small = h("img", { alt: `face ${i + 1}`, loading: "lazy" });
    show(small, view, face);
    return h("button", { type: "button", "data-face": face.face_id, onclick: () => choose(face) }, small);
  }));
  const say = (same) => (event) => busy(event.currentTarget, () => label(context, match, chosen, same, event.target));
  const explain = (event) => busy(event.currentTarget, async () => why.replaceChildren(...await explained(context, chosen)));
  buttons.append(h("button.good", { onclick: say(true) }, "Same"), h("button.bad", { onclick: say(false) }, "Not the same"), h("button.quiet", { onclick: explain }, "Why?"));
  const told = grade(match, answer.threshold);
  const name = match.subject ? match.subject.id : match.role === "distractor" ? "distractor" : "no name";
  choose(faces.find((f) => f.face_id === match.face_id) || faces[0]);
  return h("div.match", { "data-face": match.face_id }, link,
    h("div", {}, h("strong", {}, name), " ", told ? h(`span.tag.${told[1]}`, {}, told[0]) : null, thumbs), buttons, why);
}

function show(image, view, face) {
  picture(`${view.base}/faces/${face.face_id}/crop?kind=colour`).then((src) => { image.src = src; }, () => {});
}

/** The figures of one face of the gallery, and what made its distance. */
async function explained({ view, query, number, signal }, face) {
  const parameters = { ...view.parameters(), limit: 20, group_by: "face", include: "explanation" };
  const answer = await query.search(parameters, signal);
  const found = answer.faces[number]?.matches.find((m) => m.face_id === face.face_id);
  const figures = (m) => h("p.soft.figures", {}, `distance ${m.distance.toPrecision(4)}`,
    m.similarity === null ? "" : ` · similarity ${m.similarity.toFixed(1)} of 100, as a pair at even odds`);
  if (!found) return [figures(face), h("p.soft", {}, "Only the 20 nearest faces are explained.")];
  return [figures(found), ...await heat(view.base, found)];
}

async function label(context, match, face, same, button) {
  const { query, number } = context;
  const mine = await query.enrolled(number);
  if (mine.id === face.face_id) throw new Error("This is the query photo itself: a face is not compared with itself.");
  const { refused } = await post("/v1/labels", { labels: [{ face_a: mine.id, face_b: face.face_id, task: "identity", same }] });
  if (refused.length) throw new Error(refused[0].detail);
  button.parentElement.querySelectorAll("button").forEach((b) => b.classList.toggle("said", b === button));
  toast(same ? "Kept: the same person" : "Kept: not the same person");
  if (mine.added) tellKept(context, mine.id, same ? match.subject : null);
}

/** That the query is enrolled now, and what can be done about it: give it the person's name, or remove it. */
function tellKept({ view, query, number, kept }, id, subject) {
  const path = `${view.base}/faces/${id}`;
  const done = (text) => { kept.replaceChildren(h("p.soft", {}, text)); };
  const name = subject && h("button.quiet", { id: "name-query", onclick: (e) => busy(e.currentTarget, async () => {
    await call("PATCH", path, { json: { subject: subject.id } });
    query.settle(number, id);
    done(`The face now belongs to ${subject.id}.`);
  }) }, `Add it to ${subject.id}`);
  const remove = h("button.quiet", { id: "remove-query", onclick: (e) => busy(e.currentTarget, async () => {
    await call("DELETE", path);
    query.forget(number);
    done("The face and its labels were removed.");
  }) }, "Remove it and its labels");
  kept.replaceChildren(
    h("p.soft", {}, "Labels are about enrolled faces, so this face was added to the collection, without a name. A face without a name never stands before its person."),
    h("div.row", {}, name, remove));
}
