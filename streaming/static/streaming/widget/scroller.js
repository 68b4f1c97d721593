/** Keeps the end of the conversation in sight, if that is where the reader is. */

const NEAR = 64; // px from the end that count as there

export class Scroller {
  following = true;
  #box;

  /**
   * @param {HTMLElement} box what scrolls
   * @param {(following: boolean) => void} [told] called when the reader leaves the end or comes back
   */
  constructor(box, told = () => {}) {
    this.#box = box;
    box.addEventListener("scroll", () => {
      const following = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
      if (following === this.following) return;
      this.following = following;
      told(following);
    });
    // A keyboard comes up, the panel opens: the end stays where it was.
    new ResizeObserver(() => this.keep()).observe(box);
  }

  /** To be called after the content has changed. */
  keep() {
    if (this.following) this.#box.scrollTop = this.#box.scrollHeight;
  }

  toEnd() {
    this.following = true;
    this.keep();
  }
}
