/**
 * Answers of an Unbroken gateway that outlive the network, the tab and the server.
 *
 *     const client = new UnbrokenClient({ token });
 *     const answer = client.start({ model: "chat-default", messages });
 *     for await (const { text } of answer) output.append(text);
 *
 * docs/browser-client.md has the whole of it, unbroken.d.ts the types.
 */

import { Answer } from "./client/answer.js";
import { Cache } from "./client/cache.js";
import { Http } from "./client/http.js";
import { Ladder, Network } from "./client/network.js";

export { Answer };
export { ContentViolation, NetworkError, ServerError, UnbrokenError } from "./client/errors.js";

export class UnbrokenClient {
  /** The way to the gateway: `rtt` and `drift` in milliseconds, `bytesPerSecond`, `isWeak`. */
  network = new Network();
  #answers = new Set();
  #parts;
  #closing = new AbortController();

  constructor({ baseUrl = new URL(import.meta.url).origin, token, refreshToken, ...options }) {
    this.#parts = {
      options,
      network: this.network,
      answers: this.#answers,
      http: new Http(baseUrl, token, refreshToken),
      ladder: new Ladder(options.transports ?? ["websocket", "sse", "longpoll", "plain"]),
      cache: new Cache({
        name: `unbroken:${options.namespace ?? ""}`,
        storage: options.storage ?? "indexeddb",
        sessions: options.maxCachedSessions ?? 50,
        bytes: options.maxCachedBytes ?? 5_000_000,
      }),
    };
    this.#listen();
  }

  /** Begins an answer. Whatever happens to the network, it is begun once. */
  start(request, options = {}) {
    options.signal?.throwIfAborted();
    return new Answer(this.#parts, { ...options, request });
  }

  /** Goes on with an answer, also of another tab or of before a reload. */
  resume(id, options = {}) {
    return new Answer(this.#parts, { ...options, id });
  }

  /** Answers that are kept here, newest first. */
  async sessions() {
    const records = await this.#parts.cache.list();
    return records.map(({ end, bytes, ...record }) => ({ ...record, ended: end !== null }));
  }

  /** Deletes what is kept here of one answer, or of all. The gateway keeps its own. */
  forget(id) {
    return this.#parts.cache.delete(id);
  }

  /** Leaves all answers without stopping them. */
  close() {
    this.#closing.abort();
    for (const answer of this.#answers) answer.leave();
    this.#parts.cache.close();
  }

  #listen() {
    const { signal } = this.#closing;
    const page = globalThis.document;
    const all = (call) => () => {
      for (const answer of this.#answers) call(answer);
    };
    const moved = all((answer) => answer.wake(true));
    const shown = all((answer) => (page.hidden ? answer.hide(false) : answer.wake(false)));
    globalThis.addEventListener?.("online", moved, { signal });
    globalThis.addEventListener?.("pageshow", moved, { signal });
    globalThis.addEventListener?.("pagehide", all((answer) => answer.hide(true)), { signal });
    page?.addEventListener("visibilitychange", shown, { signal });
    page?.addEventListener("resume", moved, { signal });
  }
}
