import { h, number } from "./dom.js";

const TONES = { match: "good", possible: "warn", unknown: "plain" };
const SOURCES = {
  "leave-one-out": "its own people, who searched it without their own faces",
  "held-out": "people whom the model has not learned from",
  distractors: "the distractors",
};

/** What the service decided of one face of the query, in words, with what that rests on. */
export function verdict(answer, face) {
  const [title, text] = words(answer, face);
  return h(`div.verdict.${TONES[face.decision] || "plain"}`, { id: "verdict", role: "status", "data-decision": face.decision || "none" },
    h("strong", {}, title), h("p", {}, text), evidence(answer.threshold));
}

function words({ threshold }, { decision, subject, matches }) {
  if (decision === "match" && subject) return [`Match: ${subject.id}`, rate(threshold)];
  if (decision === "match") return ["Seen before, without a name", "A face without a name in this collection is alike enough; no person with a name is."];
  if (decision === "possible") return ["Possible: worth a look", "Nobody is alike enough to be named. The first of these may be the person: compare the pictures."];
  if (decision === "unknown") return ["Unknown", "Nobody in this collection is alike enough to be named."];
  return ["No verdict", matches.length ? "These are the most alike, in their order. Whether one of them is the person cannot be told yet." : ""];
}

function rate(threshold) {
  if (!threshold?.fpir) return "";
  return `At this setting about 1 in ${number(Math.round(1 / threshold.fpir))} people who are not in the collection is given a name.`;
}

/** What the threshold was measured by, or why there is none, or why it is on the careful side. */
function evidence(threshold) {
  const line = (text) => h("p.soft", { id: "evidence" }, text);
  if (!threshold) return line("Nothing is measured here to decide by. Enrol 100 faces or more, of people with two photos or more each, or use a recogniser that brings its own measurement.");
  if (threshold.enough === false) return line(threshold.note ? `${threshold.note[0].toUpperCase()}${threshold.note.slice(1)}.` : "The evidence for this threshold is thin.");
  const { source, searches } = threshold.evidence || {};
  return SOURCES[source] ? line(`Measured on this collection by ${number(searches)} searches for ${SOURCES[source]}.`) : null;
}

/** How likely a match is the person, as words and their tone; null where nothing is calibrated, and for distractors. */
export function grade(match, threshold) {
  if (match.passes === null || match.role === "distractor") return null;
  if (match.passes) return ["very likely", "good"];
  const isNear = match.person_distance !== null && (match.subject
    ? match.person_distance <= threshold?.possible_distance
    : threshold?.nameless_possible_distance != null && match.distance <= threshold.nameless_possible_distance);
  return isNear ? ["worth a look", "warn"] : ["weak", "plain"];
}
