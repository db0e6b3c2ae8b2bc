import { picture } from "./api.js";
import { h, percent } from "./dom.js";

const APART = "230, 110, 0";
const TOGETHER = "0, 110, 230";

/** What made the distance of a match: each descriptor's cells over the crop that they tell of, and its share. */
export async function heat(base, match) {
  if (!match.explanation) return [h("p.soft", {}, `No explanation: ${match.unexplained}.`)];
  const { distance, parts, rest } = match.explanation;
  const share = (x) => percent(distance ? x / distance : 0);
  const figures = parts.map(async (part) => h("figure", {}, part.cells ? await painted(base, match, part) : null,
    h("figcaption", {}, `${part.descriptor}: ${share(part.contribution)} of the distance`)));
  const drawn = parts.some((part) => part.cells);
  const text = drawn ? `Orange draws the two faces apart, blue together.${rest ? ` ${share(rest)} belongs to no cell.` : ""}`
    : "It looks at the face as a whole: there is no map of its parts.";
  return [...await Promise.all(figures), h("p.soft", {}, text)];
}

async function painted(base, match, part) {
  const image = h("img", { alt: "" });
  image.src = await picture(`${base}/faces/${match.face_id}/crop?kind=${part.grid.crop}`);
  await image.decode();
  const canvas = h("canvas", { width: image.naturalWidth, height: image.naturalHeight, title: "what each cell made" });
  const paint = canvas.getContext("2d");
  const most = Math.max(...part.cells.flat().map(Math.abs)) || 1;
  const { size } = part.grid;
  paint.drawImage(image, 0, 0);
  part.cells.forEach((row, y) => row.forEach((value, x) => {
    paint.fillStyle = `rgba(${value > 0 ? APART : TOGETHER}, ${0.75 * Math.abs(value) / most})`;
    paint.fillRect(x * size, y * size, size, size);
  }));
  return canvas;
}
