/** h("div.card", {onclick}, ...children): an element. Text is always text, never markup. */
export function h(selector, props = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list" && name !== "style") node[name] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return node;
}

export function toast(text, bad = false) {
  const note = h("div", {}, text);
  if (bad) note.className = "bad";
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), bad ? 9000 : 4000);
}

/** Runs it with the button off, and says what went wrong. */
export async function busy(button, work) {
  button.disabled = true;
  try {
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") toast(error.message, true);  // an abort means that the view was left
  } finally {
    button.disabled = false;
  }
}

/** A place to drop a file on, or to choose one with the keyboard. */
export function drop(text, accept, take) {
  const input = h("input", { type: "file", accept, onchange: () => input.files[0] && take(input.files[0]) });
  const place = h("label.drop", {}, text, input);
  place.addEventListener("dragover", (e) => { e.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (e) => {
    e.preventDefault();
    place.classList.remove("over");
    if (e.dataTransfer.files[0]) take(e.dataTransfer.files[0]);
  });
  return place;
}

export const number = (n) => Number(n).toLocaleString();
export const percent = (x) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(1)} %`);
