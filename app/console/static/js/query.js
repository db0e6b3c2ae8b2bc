import { call, form, picture } from "./api.js";
import { h } from "./dom.js";

/** A dropped photo. A face of it is enrolled only when it is labelled, since labels are about enrolled faces. */
export class PhotoQuery {
  constructor(base, file, aligned) {
    Object.assign(this, { base, file, aligned, enrolling: new Map(), boxes: [] });
  }

  async picture() {
    const src = URL.createObjectURL(this.file);
    this.image = h("img", { src, alt: "the query photo" });
    try {
      await this.image.decode();
    } catch {
      throw new Error(`${this.file.name} is not a picture that this browser can show`);
    } finally {
      URL.revokeObjectURL(src);
    }
    this.frame = h("div.photo", {}, this.image);
    return this.frame;
  }

  async search(parameters, signal) {
    const query = { ...parameters, aligned: this.aligned, face_selection: "all" };
    return (await form(`${this.base}/search`, this.file, {}, query, signal)).json();
  }

  /** The photo with a button around each face; `pick` takes the number of the one that was chosen. */
  drawn(faces, pick) {
    const { naturalWidth: width, naturalHeight: height } = this.image;
    this.faces = faces;
    this.boxes = faces.map(({ bounding_box: b }, i) => {
      const box = h("button.box", { type: "button", "aria-label": `face ${i + 1} of ${faces.length}`, "aria-pressed": "false", onclick: () => pick(i) });
      const sides = { left: b.x / width, top: b.y / height, width: b.width / width, height: b.height / height };
      for (const [side, share] of Object.entries(sides)) box.style[side] = `${100 * share}%`;
      return box;
    });
    this.frame.append(...this.boxes);
    return this.frame;
  }

  mark(number) {
    this.boxes.forEach((box, i) => box.setAttribute("aria-pressed", String(i === number)));
  }

  summary(faces) {
    const several = faces.length > 1 ? "; choose one by a click" : "";
    return [h("p.soft", {}, `${faces.length} face${faces.length === 1 ? "" : "s"} found${several}`)];
  }

  /** The enrolled face behind a face of the photo: {id, added}. It is enrolled, without a name, where it is not yet. */
  enrolled(number) {
    if (!this.enrolling.has(number)) {
      const enrolling = this.enrol(number);
      this.enrolling.set(number, enrolling);
      enrolling.catch(() => this.enrolling.delete(number));
    }
    return this.enrolling.get(number);
  }

  async enrol(number) {
    const where = this.aligned ? {} : { bounding_box: JSON.stringify(this.faces[number].bounding_box) };
    const fields = { aligned: this.aligned, metadata: JSON.stringify({ kept_for: "labels" }), ...where };
    try {
      const answer = await form(`${this.base}/faces`, this.file, fields);
      const { face_records: [face], unindexed_faces: refused } = await answer.json();
      if (!face) throw new Error(`this face cannot be enrolled, and so not be labelled: ${refused.flatMap((u) => u.reasons).join(", ")}`);
      return { id: face.face_id, added: answer.status === 201 };
    } catch (error) {
      if (error.code !== "DuplicateWithOtherSubject") throw error;
      return { id: error.body.face_id, added: false };
    }
  }

  /** The enrolled face is there to stay. */
  settle(number, id) {
    this.enrolling.set(number, Promise.resolve({ id, added: false }));
  }

  /** The enrolled face was removed again. */
  forget(number) {
    this.enrolling.delete(number);
  }
}

/** A face that is enrolled already. */
export class FaceQuery {
  constructor(base, faceId) {
    Object.assign(this, { base, faceId });
  }

  async picture() {
    const src = await picture(`${this.base}/faces/${encodeURIComponent(this.faceId)}/crop?kind=colour`);
    this.frame = h("div.photo", {}, h("img", { alt: "the query face", src }));
    return this.frame;
  }

  async search(parameters, signal) {
    return (await call("POST", `${this.base}/faces/${encodeURIComponent(this.faceId)}/search`, { query: parameters, signal })).json();
  }

  drawn() {
    return this.frame;
  }

  mark() {}

  summary() {
    return [];
  }

  async enrolled() {
    return { id: this.faceId, added: false };
  }
}
