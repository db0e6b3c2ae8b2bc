import { dropPictures, get, key } from "./api.js";
import { h, toast } from "./dom.js";
import { collections } from "./collections.js";
import { gallery } from "./gallery.js";
import { search } from "./search.js";
import { learn } from "./learn.js";
import { showNotice } from "./notice.js";

const VIEWS = { gallery: ["Gallery", gallery], search: ["Search", search], learn: ["Learn", learn] };
const view = document.getElementById("view");
const crumbs = document.getElementById("crumbs");
const leave = document.getElementById("leave");

function door() {
  const input = h("input", { type: "password", autocomplete: "off", required: true, size: 46, id: "key" });
  const enter = async (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    try {
      await get("/v1/collections", { limit: 1 });
      await show();
    } catch (error) {
      key.forget();
      toast(error.message, true);
    }
  };
  return h("section.card", {},
    h("h1", {}, "Your key"),
    h("p.soft", {}, "The first start of the service printed an admin key; ", h("code", {}, "likeness keys create --role admin"), " makes another. It stays in this tab."),
    h("form.row", { onsubmit: enter }, h("label", {}, "Key", input), h("button", { id: "enter" }, "Enter")));
}

function tabs(collection, current) {
  const link = (name) => h("a", { href: `#/${encodeURIComponent(collection)}/${name}`, "aria-current": name === current ? "page" : null }, VIEWS[name][0]);
  return [h("a", { href: "#/" }, "Collections"), h("a", { href: `#/${encodeURIComponent(collection)}/gallery` }, collection), ...Object.keys(VIEWS).map(link)];
}

/** Where a weak recogniser serves because the recommended one is not installed: that, and the command that mends it. */
async function recogniserNotice(signal) {
  const { recogniser } = await get("/info", undefined, signal);
  return recogniser.notice ? [h("p.notice", { id: "recogniser-notice", role: "note" }, recogniser.notice)] : [];
}

/** The collection, the view and its argument that the address names; null if there is no such page. */
function readAddress() {
  try {
    const [collection, name = "gallery", argument] = location.hash.slice(2).split("/").map(decodeURIComponent);
    return Object.hasOwn(VIEWS, name) ? { collection, name, argument } : null;
  } catch (error) {
    if (error instanceof URIError) return null;
    throw error;
  }
}

let left = new AbortController();

/** Shows the view that the address names. What the view before it was still waiting for is aborted. */
async function show() {
  left.abort();
  dropPictures();
  const { signal } = (left = new AbortController());
  leave.hidden = !key.get();
  crumbs.replaceChildren();
  if (!key.get()) return view.replaceChildren(door());
  showNotice();
  const address = readAddress();
  if (!address) toast("There is no page at this address.", true);
  const { collection, name, argument } = address ?? {};
  try {
    if (collection) crumbs.replaceChildren(...tabs(collection, name));
    const [notice, parts] = await Promise.all([recogniserNotice(signal), collection ? VIEWS[name][1](collection, argument, signal) : collections()]);
    if (!signal.aborted) view.replaceChildren(...notice, ...parts);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) key.forget();
    toast(error.message, true);
    if (!key.get()) show();
  }
}

leave.addEventListener("click", () => { key.forget(); location.hash = "#/"; show(); });
addEventListener("hashchange", show);
show();
