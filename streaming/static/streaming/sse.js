/**
 * Server-sent events from a fetch (HTML Living Standard, 9.2). EventSource can't send a POST.
 */

/**
 * Yields {event, data, id} for each complete event. What is left when the stream ends is half an
 * event and is dropped. Comments (keep-alives) are passed over.
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new Parser();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    // Also when the consumer leaves the loop early: the server must learn that nobody reads on.
    reader.cancel().catch(() => {});
  }
}

/** Takes text as it comes: lines and events may be cut anywhere. */
export class Parser {
  #rest = "";
  #event = "";
  #data = [];
  #id = "";

  *feed(text) {
    this.#rest += text;
    for (;;) {
      const match = /\r\n|\r|\n/.exec(this.#rest);
      // A CR at the very end may be the first half of CRLF: wait for what follows.
      if (!match || (match[0] === "\r" && match.index === this.#rest.length - 1)) return;
      const line = this.#rest.slice(0, match.index);
      this.#rest = this.#rest.slice(match.index + match[0].length);
      if (line === "") {
        if (this.#data.length) {
          yield { event: this.#event || "message", data: this.#data.join("\n"), id: this.#id };
        }
        this.#event = "";
        this.#data = [];
      } else {
        this.#field(line);
      }
    }
  }

  #field(line) {
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#event = value;
    else if (name === "data") this.#data.push(value);
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }
}
