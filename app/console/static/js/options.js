import { h } from "./dom.js";

/** Fields for the options that GET /v1/methods lists. `values()` returns those that differ from their defaults. */
export function optionFields(title, options) {
  const fields = options.map((option) => ({ option, input: makeInput(option) }));
  const rows = fields.map(({ option, input }) => h("tr", { "data-option": option.name },
    h("td", {}, h("label", {}, option.name, input)), h("td.soft", {}, describeRange(option)), h("td", {}, option.help)));
  const node = h("details", {}, h("summary", {}, `Options of ${title}`), h("table", {}, rows));
  node.addEventListener("invalid", () => { node.open = true; }, true);  // a field that is not shown cannot be mended
  const read = () => fields.map(({ option, input }) => [option, readValue(option, input)]);
  const values = () => Object.fromEntries(read().filter(isChanged).map(([option, value]) => [option.name, value]));
  return { node: fields.length ? node : null, values };
}

function makeInput({ type, choices, default: preset, minimum, maximum }) {
  if (choices.length) return h("select", {}, choices.map((value) => h("option", { value, selected: value === preset }, String(value))));
  if (type === "boolean") return h("input", { type: "checkbox", checked: preset });
  const input = h("input", { type: isNumeric(type) ? "number" : "text", placeholder: String(preset) });
  if (isNumeric(type)) input.step = type === "integer" ? 1 : "any";
  if (minimum !== null) input.min = minimum;
  if (maximum !== null) input.max = maximum;
  return input;
}

/** An empty field stands for the default, which is undefined here. */
function readValue({ type, items, choices }, input) {
  if (choices.length) return choices[input.selectedIndex];
  if (type === "boolean") return input.checked;
  const text = input.value.trim();
  if (!text) return undefined;
  const parse = (part, kind) => (isNumeric(kind) ? Number(part) : part);
  return type === "array" ? text.split(",").map((part) => parse(part.trim(), items)) : parse(text, type);
}

const isNumeric = (type) => type === "integer" || type === "number";
const isChanged = ([option, value]) => value !== undefined && JSON.stringify(value) !== JSON.stringify(option.default);

function describeRange({ type, minimum, maximum, unit }) {
  if (type === "array") return `${unit}, separated by commas`;
  const range = minimum === null ? "" : maximum === null ? `${minimum} or more` : `${minimum} to ${maximum}`;
  return [range, unit].filter(Boolean).join(" ");
}
