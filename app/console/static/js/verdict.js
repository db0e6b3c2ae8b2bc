import { h, number } from "./dom.js";

const TONES = { match: "good", possible: "warn", unknown: "plain" };

/** What the service decided of one face of the query, in words, with the reason where the evidence is thin. */
export function verdict(answer, face) {
  const [title, text] = words(answer, face);
  return h(`div.verdict.${TONES[face.decision] || "plain"}`, { id: "verdict", role: "status", "data-decision": face.decision || "none" },
    h("strong", {}, title), h("p", {}, text), evidence(answer));
}

function words({ threshold }, face) {
  if (face.decision === "match") return [`Match: ${face.subject.id}`, rate(threshold)];
  if (face.decision === "possible") return ["Possible: worth a look", "Nobody is alike enough to be named. The first of these may be the person: compare the pictures."];
  if (face.decision === "unknown") return ["Unknown", "Nobody in this collection is alike enough to be named."];
  return ["No verdict", "These are the most alike, in their order. Whether any of them is the person, nothing here can tell yet."];
}

function rate(threshold) {
  if (!threshold?.fpir) return "";
  return `At this setting at most 1 in ${number(Math.round(1 / threshold.fpir))} people who are not in the collection is given a name.`;
}

/** Why there is no threshold, or one on the careful side; null where it is well founded. */
function evidence({ threshold }) {
  if (!threshold) {
    return h("p.soft", { id: "evidence" }, "Nothing has been measured here by which to decide: add people with a name, some of them with two photos or more.");
  }
  if (threshold.enough || threshold.kind === "similarity") return null;
  const { people, searches, more_people: more } = threshold.evidence || {};
  const known = searches ? `${number(searches)} searches for ${number(people)} people` : "pairs of faces only";
  const missing = more ? `; about ${number(more)} more people with a name would settle it` : "";
  return h("p.soft", { id: "evidence" }, `The evidence for this threshold is thin (${known}), so it is on the careful side${missing}.`);
}

/** How likely a match is the person, as a word and its tone; null where nothing is calibrated. */
export function grade(match, threshold) {
  if (match.passes === null || match.passes === undefined) return null;
  if (match.passes) return ["very likely", "good"];
  const near = threshold?.possible_distance;
  if (near !== undefined && near !== null && match.person_distance !== null && match.person_distance <= near) return ["possible", "warn"];
  return ["weak", "plain"];
}
