import { get } from "./api.js";

const notice = document.getElementById("notice");
let asked = false;

/** What the operator should know about this service, from /info: once, above every view. */
export async function showNotice() {
  if (asked) return;
  asked = true;
  try {
    notice.textContent = (await get("/info")).recogniser.notice || "";
  } catch {
    asked = false; // the view beside it tells why
  }
  notice.hidden = !notice.textContent;
}
