/** One answer: followed over whatever holds, each token once, until it has ended. */

import { ContentViolation, NetworkError, ServerError, UnbrokenError } from "./errors.js";
import { Link } from "./link.js";
import { TRANSPORTS } from "./transports.js";

const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 10_000;
const OFFLINE_MS = 30_000; // browsers may be wrong about being offline: look now and then
const CREATION_MS = 60_000; // it may wait in a queue
const SAVE_MS = 500;
const ACK_MS = 1000;
const ACK_REQUEST_MS = 5000; // a request costs more than a message
const STATES = { completed: "done", stopped: "stopped", cancelled: "stopped" };

export class Answer extends EventTarget {
  id = "";
  reference = "";
  text = "";
  seq = 0;
  state = "connecting";
  transport = "";
  /** Why it has failed. */
  error = null;
  /** What `finished` resolves to. */
  result = null;
  /** Whether the gateway may have sent us something before. */
  isKnown = false;
  #parts;
  #options;
  #link = null;
  #pauses = new Set(); // what ends each of them
  #settle;
  #left = false;
  #end = null; // how the log ends: {seq, …} of its terminal record
  #forgotten = false;
  #heardAt = Date.now();
  #silence = 15_000; // these two until the gateway has said its own
  #window = 900_000;
  #saving = 0;
  #readers = 0;
  #paced = false; // whether the page says itself what it has shown
  #shown = 0;
  #acked = 0;
  #acking = 0;
  #beganAt = Date.now();
  #paintedAt = 0;
  #lastAt = 0;
  #largestGap = 0;
  #reconnects = 0;

  /** @param {object} parts of the client: {http, network, ladder, cache, options, answers} */
  constructor(parts, { id = "", request = null, ...options }) {
    super();
    Object.assign(this, { id, request });
    this.#parts = parts;
    this.#options = options;
    this.headers = { traceparent: `00-${random(16)}-${random(8)}-01` };
    this.finished = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    this.finished.catch(() => {}); // who does not wait for it is told by the event
    options.signal?.addEventListener("abort", () => this.stop().catch(() => {}), { once: true });
    parts.answers.add(this);
    this.#run();
  }

  get isOver() {
    return this.#left || !!this.error || !!this.result;
  }

  /** Pieces of text, what is there already first, to the end. Throws what the answer failed with. */
  async *[Symbol.asyncIterator]() {
    let at = 0;
    this.#readers += 1;
    try {
      for (;;) {
        if (this.text.length > at) {
          const piece = { seq: this.seq, text: this.text.slice(at) };
          at = this.text.length;
          yield piece;
          if (!this.#paced) this.#note(piece.seq); // it asks for more: that one has been dealt with
        } else if (this.error) {
          throw this.error;
        } else if (this.isOver) {
          return;
        } else {
          await this.#change();
        }
      }
    } finally {
      this.#readers -= 1;
    }
  }

  /** The page has shown everything up to `seq`. From the first call on, nothing else is acknowledged. */
  rendered(seq) {
    this.#paced = true;
    this.#note(seq);
  }

  /** Ends the answer on the gateway, for good. What it has said until then still comes. */
  async stop({ keepalive = false } = {}) {
    while (!this.id && !this.isOver) await this.#change(); // it may have begun: stop what has
    if (!this.id || this.#end) return;
    const init = { method: "POST", headers: this.headers, keepalive };
    await this.#persist(() => this.#parts.http.fetch(`/v1/sessions/${this.id}/stop`, init));
  }

  /** Follows it no longer. The gateway keeps it for its resume window. */
  leave() {
    if (this.isOver) return;
    this.#left = true;
    this.#close();
    this.#settle.reject(new UnbrokenError("The page has left this answer.", { code: "left", resumable: true }));
  }

  // What its links and its client call

  /** One event of the gateway, over any transport. */
  take(name, data, link) {
    if (this.isOver) return;
    this.#heardAt = Date.now();
    this.isKnown = true;
    this.transport = link.name;
    if (name === "session") {
      this.reference = data.reference;
      this.#silence = link.silence = data.silence_seconds * 1000;
      this.#window = data.resume_window_seconds * 1000;
      link.alive(0); // with the new silence
      this.#parts.network.clock(link.askedAt, data.server_time);
      this.#tell("session", data);
    }
    this.#move("streaming");
    if (name === "token") {
      if (data.seq > this.seq) this.#append(data.text, (link.cursor = data.seq));
    } else if (name === "done") {
      this.#finish(data);
    } else if (name === "error") {
      this.#finish({ seq: data.seq, error: data.error });
    } else if (name === "complete") {
      link.isComplete = true;
      link.close();
    } else if (name === "interrupted") {
      link.close(ServerError.from(data.error, { temporary: true }));
    } else if (name === "attempt" || name === "recovering" || name === "recovered") {
      this.#tell(name, data);
    }
  }

  /** The page is back, or its network: what slept, or belonged to another network, may be dead. */
  wake(isMoved) {
    for (const end of this.#pauses) end();
    const link = this.#link;
    const patience = isMoved ? 1000 : link?.wishes().heartbeat * 1000 + 500;
    if (link && Date.now() - link.heardAt > patience) link.close(new NetworkError("The page was away."));
  }

  /** The page is hidden, or being closed. */
  hide(isClosing) {
    this.#save(true);
    this.#ack();
    if (isClosing && this.#options.stopOnClose) this.stop({ keepalive: true }).catch(() => {});
  }

  /** Waits, but not when the page wakes or the answer is over. */
  async pause(ms) {
    if (this.isOver) return;
    let end;
    await new Promise((resolve) => {
      end = resolve;
      this.#pauses.add(end);
      setTimeout(end, ms);
    });
    this.#pauses.delete(end);
  }

  // Its course

  async #run() {
    try {
      if (this.id) await this.#recall();
      else await this.#create();
      await this.#follow();
    } catch (error) {
      if (!this.isOver) this.#fail(error);
    }
  }

  /** One key for all tries: however often the network fails, there is one answer. */
  async #create() {
    const { idempotencyKey = random(16), level, variant } = this.#options;
    const init = {
      method: "POST",
      body: JSON.stringify(this.request),
      headers: {
        ...this.headers,
        "Content-Type": "application/json",
        "Idempotency-Key": idempotencyKey,
        ...(level && { "X-Unbroken-Level": level }),
        ...(variant && { "X-Unbroken-Variant": variant }),
      },
    };
    const session = await this.#persist(() =>
      this.#json("/v1/sessions", { ...init, signal: AbortSignal.timeout(CREATION_MS) }),
    );
    this.id = session.id;
    this.reference = session.reference;
    this.#save(true);
    this.#tell("change");
  }

  /** What is in the cache is shown at once. */
  async #recall() {
    const cached = await this.#parts.cache.get(this.id);
    if (!cached || this.isOver) return;
    const { reference, request, text, seq, end } = cached;
    Object.assign(this, { reference, request, isKnown: true });
    this.#acked = seq;
    if (text) this.#append(text, seq);
    if (end) this.#finish(end);
  }

  async #follow() {
    const { ladder, http } = this.#parts;
    const tried = new Set();
    let failures = 0;
    let silences = 0;
    let refreshed = false;
    while (!this.isOver) {
      const name = ladder.next(tried);
      if (!name) {
        tried.clear();
        await this.#backoff(failures++);
        continue;
      }
      const before = this.seq;
      const link = (this.#link = new Link(name, this, this.#parts, this.#silence));
      let error = null;
      try {
        await TRANSPORTS[name](link);
      } catch (thrown) {
        error = thrown;
      }
      this.#link = null;
      link.close();
      if (this.isOver) return;
      if (link.isComplete) return void (await this.#learnEnd());
      if (this.seq > before) failures = silences = 0;
      if (link.isOpen) {
        ladder.works(name);
        tried.clear();
        refreshed = false;
        if (!error) {
          // Nothing is wrong, but nothing may go round at full speed either.
          if (this.seq === before && Date.now() - link.askedAt < 1000) await this.pause(FIRST_BACKOFF_MS);
          continue;
        }
      }
      if (error?.status === 401 && link.token && !refreshed) {
        refreshed = true;
        await this.#persist(() => http.refresh(link.token, error));
        continue;
      }
      this.#judge(error, failures);
      if (link.timedOut) silences += 1;
      if (link.isOpen && silences < 2) {
        await this.#backoff(failures++, error);
      } else {
        // Perhaps this kind of connection does not get through: look whether another does.
        ladder.failed(name, link.timedOut ? 2 : 1);
        tried.add(name);
        this.#lose();
      }
    }
  }

  /** The log has ended at our cursor: what is left is to ask how. */
  async #learnEnd() {
    const init = { headers: this.headers };
    const session = await this.#persist(() => this.#json(`/v1/sessions/${this.id}`, init));
    this.#finish({ ...session, seq: this.seq + 1, usage: null });
  }

  async #json(path, init) {
    const response = await this.#parts.http.fetch(path, init);
    return response.json().catch((cause) => {
      throw new NetworkError("What the gateway said broke off.", { cause });
    });
  }

  /** Tries until it works, for as long as the gateway may be waiting for us. */
  async #persist(work) {
    for (let failures = 0; ; failures += 1) {
      try {
        return await work();
      } catch (error) {
        this.#judge(error, failures);
        await this.#backoff(failures, error);
      }
    }
  }

  /** Throws what trying again does not help against. */
  #judge(error, failures) {
    const isTemporary = !error || error.temporary || error.name === "TimeoutError";
    if (!isTemporary && !(error.status === 500 && failures < 3)) throw error;
    if (Date.now() - this.#heardAt < this.#window) return;
    const message = "The gateway could not be reached for as long as it keeps an answer waiting.";
    throw new NetworkError(message, { code: "resume_window_passed", resumable: false, cause: error });
  }

  /** Waits longer each time, never in step with others, and not at all once the network is back. */
  async #backoff(failures, error) {
    this.#lose();
    const most = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** failures);
    await this.pause(Math.max(50, Math.random() * most, (error?.retryAfter ?? 0) * 1000));
    if (globalThis.navigator?.onLine === false) await this.pause(OFFLINE_MS);
  }

  #lose() {
    if (this.state !== "streaming" || this.isOver) return;
    this.#reconnects += 1;
    this.#parts.network.lost();
    this.#move("reconnecting");
  }

  // What has come

  #append(text, seq) {
    const now = Date.now();
    this.#paintedAt ||= now;
    if (this.#lastAt) this.#largestGap = Math.max(this.#largestGap, now - this.#lastAt);
    this.#lastAt = now;
    this.text += text;
    this.seq = seq;
    this.#tell("text", { seq, text });
    this.#tell("change");
    if (!this.#readers && !this.#paced) this.#note(seq);
    this.#save();
  }

  /** Its terminal record, from the gateway or from the cache. */
  #finish(end) {
    this.#end = end;
    const { state, finish_reason: finishReason, usage, error } = end;
    const { reference, text, id } = this;
    if (finishReason === "content_filter") {
      if (this.transport) this.#parts.options.onContentViolation?.({ id, reference, text });
      this.#fail(new ContentViolation(text));
    } else if (error || !STATES[state]) {
      const code = end.error_code || `session_${state}`;
      this.#fail(ServerError.from(error ?? { message: "The answer has ended early.", code }));
    } else {
      this.result = { text, finishReason, usage };
      this.#move(STATES[state]);
      this.#close();
      this.#tell("done", { finishReason, usage });
      this.#settle.resolve(this.result);
    }
  }

  #fail(error) {
    if (error instanceof UnbrokenError) error.reference ||= this.reference;
    if ([404, 409, 410].includes(error.status) && this.id) {
      this.#forgotten = true; // what the gateway no longer has for us is kept nowhere
      this.#parts.cache.delete(this.id);
    }
    this.error = error;
    this.#move("failed");
    this.#close();
    this.#tell("error", error);
    this.#settle.reject(error);
  }

  #close() {
    this.#save(true);
    if (!this.#left && this.transport && this.id) {
      if (!this.#readers && !this.#paced) this.#note(this.#end?.seq ?? 0);
      this.#report();
    }
    this.#ack();
    this.#link?.close();
    for (const end of this.#pauses) end();
    this.#parts.answers.delete(this);
    this.#tell("change");
  }

  #move(state) {
    if (this.state === state) return;
    this.state = state;
    this.#tell("state", state);
    this.#save(true);
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #change() {
    return new Promise((resolve) => {
      this.addEventListener("change", resolve, { once: true });
    });
  }

  /** Soon, or now: each token would be too often. */
  #save(now) {
    if (!this.id || this.#forgotten) return;
    if (!now) {
      this.#saving ||= setTimeout(() => this.#save(true), SAVE_MS);
      return;
    }
    clearTimeout(this.#saving);
    this.#saving = 0;
    const { id, reference, request, text, seq } = this;
    this.#parts.cache.put({ id, reference, request, text, seq, end: this.#end });
  }

  #note(seq) {
    this.#shown = Math.max(this.#shown, Math.min(seq, this.#end?.seq ?? this.seq));
    if (this.isOver) this.#ack();
    else this.#acking ||= setTimeout(() => this.#ack(), this.#link?.ack ? ACK_MS : ACK_REQUEST_MS);
  }

  #ack() {
    clearTimeout(this.#acking);
    this.#acking = 0;
    if (!this.transport || this.#shown <= this.#acked) return;
    this.#acked = this.#shown;
    if (this.#link?.ack) this.#link.ack(this.#shown);
    else this.#post("ack", { seq: this.#shown });
  }

  #report() {
    if (this.#parts.options.report === false) return;
    const { rtt, drift, bytesPerSecond } = this.#parts.network;
    this.#post("report", {
      ...(this.#paintedAt && { first_paint_ms: this.#paintedAt - this.#beganAt }),
      largest_gap_ms: this.#largestGap,
      reconnects: this.#reconnects,
      transport: this.transport,
      ...(rtt !== null && { rtt_ms: rtt, drift_ms: drift }),
      ...(bytesPerSecond !== null && { bytes_per_second: bytesPerSecond }),
    });
  }

  /** Also while the page is being closed. What is lost is made good by a cursor, or not needed. */
  #post(what, body) {
    const headers = { ...this.headers, "Content-Type": "application/json" };
    const init = { method: "POST", headers, body: JSON.stringify(body), keepalive: true };
    this.#parts.http.fetch(`/v1/sessions/${this.id}/${what}`, init).catch(() => {});
  }
}

/** Hexadecimal; `crypto.randomUUID` is only there for pages that came over TLS. */
function random(bytes) {
  const values = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(values, (value) => value.toString(16).padStart(2, "0")).join("");
}
