import { get, put } from "./api.js";
import { busy, h, number } from "./dom.js";

export async function collections() {
  const { collections: all } = await get("/v1/collections", { limit: 1000 });
  const name = h("input", { id: "collection", required: true, pattern: "[A-Za-z0-9_.\\-]{1,255}", title: "letters, digits, _ . -" });
  const about = h("input", { size: 34 });
  const make = h("button", { id: "make" }, "Create");
  const submit = (event) => {
    event.preventDefault();
    busy(make, async () => {
      await put(`/v1/collections/${encodeURIComponent(name.value)}`, { description: about.value });
      location.hash = `#/${encodeURIComponent(name.value)}/gallery`;
    });
  };
  const card = (c) => h("a.card", { href: `#/${encodeURIComponent(c.id)}/search` },
    h("h2", {}, c.id), h("div.big", {}, number(c.face_count)), h("div.soft", {}, `faces of ${number(c.subject_count)} people`),
    h("p.soft", {}, c.description));
  return [
    h("h1", {}, "Collections"),
    h("section.card", {}, h("form.row", { onsubmit: submit }, h("label", {}, "New collection", name), h("label", {}, "What it is", about), make)),
    all.length ? h("div.grid", {}, all.map(card)) : h("p.soft", {}, "None yet. Create one, then drop photos into it."),
  ];
}
