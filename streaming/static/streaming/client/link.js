/** One connection of an answer, and what its transport may use of it. */

import { NetworkError } from "./errors.js";

export class Link {
  /** Whether the gateway has been heard through it. */
  isOpen = false;
  /** Whether the log has ended at our cursor. */
  isComplete = false;
  /** Whether it was given up because nothing came. */
  timedOut = false;
  /** Sends an acknowledgement, where a transport has a better way than a request. */
  ack = null;
  /** The token that the transport has shown by itself. */
  token = null;
  askedAt = Date.now();
  heardAt = Date.now();
  #answer;
  #controller = new AbortController();
  #timer = 0;

  /** @param {number} silence milliseconds without a byte after which it is dead */
  constructor(name, answer, { http, network, options }, silence) {
    Object.assign(this, { name, http, network, silence, id: answer.id, cursor: answer.seq });
    this.pageWish = options.heartbeat;
    this.signal = this.#controller.signal;
    this.#answer = answer;
    this.alive(0);
  }

  /** Something came, be it a comment. */
  alive(bytes) {
    this.heardAt = Date.now();
    if (bytes) this.network.bytes(bytes);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.timedOut = true;
      this.close(new NetworkError("Nothing was heard from the gateway."));
    }, this.silence);
  }

  event(name, data) {
    this.isOpen = true;
    this.#answer.take(name, data, this);
  }

  /** The heartbeat and the coalescing that fit, for the gateway. */
  wishes() {
    const weak = this.network.isWeak;
    return { heartbeat: this.pageWish ?? (weak ? 3 : 8), ...(weak && { coalesce: 250 }) };
  }

  /** Where to go on. A reader that has not been here yet says nothing. */
  position() {
    return this.#answer.isKnown ? { last_id: this.cursor } : {};
  }

  ask(query, accept) {
    const path = `/v1/sessions/${this.id}/events?${new URLSearchParams(query)}`;
    const headers = { ...this.#answer.headers, Accept: accept };
    return this.http.fetch(path, { headers, signal: this.signal });
  }

  pause(ms) {
    return this.#answer.pause(ms);
  }

  /** Ends it; the transport throws `reason`. */
  close(reason) {
    clearTimeout(this.#timer);
    this.#controller.abort(reason);
  }
}
