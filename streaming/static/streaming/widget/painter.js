/**
 * Draws what has changed, once per frame. In a tab that nobody sees there are no frames: a timer
 * keeps it going, so that what is read there is counted, and there when the reader comes back.
 */

const HIDDEN_MS = 250;

export class Painter {
  #due = new Set();
  #frame = 0;
  #timer = 0;
  #before;
  #after;

  /** @param {{before?: () => void, after?: () => void}} around called around the drawing of a frame */
  constructor({ before = () => {}, after = () => {} } = {}) {
    this.#before = before;
    this.#after = after;
  }

  /** @param {() => boolean} draw says whether that was all; if not, it is called in the next frame */
  soon(draw) {
    this.#due.add(draw);
    this.#schedule();
  }

  #schedule() {
    if (this.#frame || this.#timer) return;
    this.#timer = setTimeout(() => this.#paint(), HIDDEN_MS);
    this.#frame = requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
    this.#frame = this.#timer = 0;
    const due = [...this.#due];
    this.#due.clear();
    this.#before();
    for (const draw of due) if (!draw()) this.#due.add(draw);
    this.#after();
    if (this.#due.size) this.#schedule();
  }
}
