import { watch } from "./api.js";
import { h } from "./dom.js";

const NAMES = { publish: "Publishing", train: "Training", import: "Import", evaluate: "Evaluation", compare: "Comparison", "fit-first": "The first model" };

/** Shows how far a job is, and returns it once it has ended. Raises with its reasons where it failed. */
export async function followJob(path, place, signal, title) {
  const bar = h("progress", { "aria-label": title || "job" });
  const text = h("p.soft.state", {}, "queued");
  const part = h("div.job", {}, bar, text);
  place.append(part);
  try {
    const job = await watch(path, (j) => {
      if (j.progress.total) { bar.max = j.progress.total; bar.value = j.progress.done; }
      text.textContent = `${title || NAMES[j.kind] || j.kind}: ${j.state}`;
    }, signal);
    if (job.problem) throw new Error(explained(job.problem));
    return job;
  } finally {
    part.remove();
  }
}

/** What went wrong, with the reasons that the sentence itself does not give. */
function explained({ detail, reasons = [] }) {
  return [detail, ...reasons.filter((reason) => !detail.includes(reason))].join("; ");
}
