/** Answers that outlive the network, the tab and the server: docs/browser-client.md, unbroken.d.ts. */

import { Cache } from "./client/cache.js";
import { ContentViolation, Http, Ladder, Network, NetworkError, ServerError, TRANSPORTS, UnbrokenError } from "./client/wire.js";

export { ContentViolation, NetworkError, ServerError, UnbrokenError };

const STATES = { completed: "done", stopped: "stopped", cancelled: "stopped" };
const FIRST_BACKOFF = 500;

// `crypto.randomUUID` is only there for pages that came over TLS.
const random = (bytes) =>
  [...crypto.getRandomValues(new Uint8Array(bytes))].map((byte) => (byte + 256).toString(16).slice(1)).join("");

/** One connection, for its transport. */
class Link {
  askedAt = Date.now();
  #answer;
  #controller = new AbortController();
  #timer;

  constructor(name, answer, { http, network, options }, silence) {
    Object.assign(this, { name, http, network, silence, id: answer.id, cursor: answer.seq });
    this.heartbeat = options.heartbeat;
    this.signal = this.#controller.signal;
    this.#answer = answer;
    this.alive(0);
  }

  /** Something came. Nothing for `silence` milliseconds: it is dead. */
  alive(bytes) {
    this.heardAt = Date.now();
    if (bytes) this.network.bytes(bytes);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.close(new NetworkError(), (this.isSilent = true)), this.silence);
  }

  event(name, data) {
    this.isOpen = true;
    this.#answer.take(name, data, this);
  }

  wishes() {
    const { isWeak } = this.network;
    return { heartbeat: this.heartbeat ?? (isWeak ? 3 : 8), ...(isWeak && { coalesce: 250 }) };
  }

  ask(query, accept) {
    // Who has not been here yet claims to be nowhere.
    const last = this.#answer.isKnown && { last_id: this.cursor };
    const path = `/v1/sessions/${this.id}/events?${new URLSearchParams({ ...query, ...last })}`;
    return this.http.fetch(path, { headers: { ...this.#answer.headers, Accept: accept }, signal: this.signal });
  }

  pause(ms) {
    return this.#answer.pause(ms);
  }

  close(reason) {
    clearTimeout(this.#timer);
    this.#controller.abort(reason);
  }
}

export class Answer extends EventTarget {
  id = "";
  reference = "";
  text = "";
  seq = 0;
  state = "connecting";
  transport = "";
  error = null;
  result = null;
  #parts;
  #options;
  #link;
  #settle;
  #left;
  #end = null; // its terminal record
  #pauses = new Set();
  #told = new Set();
  #heardAt = Date.now();
  #silence = 15_000; // these two until the gateway says
  #window = 900_000;
  #saving;
  #readers = 0;
  #isPaced; // the page says itself what it has shown
  #shown = 0;
  #acked = 0;
  #acking;
  #beganAt = Date.now();
  #paintedAt;
  #textAt;
  #largestGap = 0;
  #reconnects = 0;

  constructor(parts, { id, request, ...options }) {
    super();
    if (id) this.id = id;
    this.request = request;
    this.#parts = parts;
    this.#options = options;
    this.headers = { traceparent: `00-${random(16)}-${random(8)}-01` };
    this.finished = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.finished.catch(() => {}); // the event tells it too
    options.signal?.addEventListener("abort", () => this.stop().catch(() => {}));
    parts.answers.add(this);
    this.#run();
  }

  get #isOver() {
    return this.#left || this.error || this.result;
  }

  async *[Symbol.asyncIterator]() {
    let at = 0;
    this.#readers++;
    try {
      for (;;) {
        if (this.text.length > at) {
          const { seq } = this;
          const text = this.text.slice(at);
          at += text.length;
          yield { seq, text };
          if (!this.#isPaced) this.#note(seq);
        } else if (this.error) throw this.error;
        else if (this.#isOver) return;
        else await this.#change();
      }
    } finally {
      this.#readers--;
    }
  }

  rendered(seq) {
    this.#isPaced = true;
    this.#note(seq);
  }

  async stop(keepalive = false) {
    while (!this.id && !this.#isOver) await this.#change(); // it may have begun
    if (!this.id || this.#end) return;
    const init = { method: "POST", headers: this.headers, keepalive };
    await this.#persist(() => this.#parts.http.fetch(`/v1/sessions/${this.id}/stop`, init));
  }

  leave() {
    if (this.#isOver) return;
    this.#left = new UnbrokenError("The page has left this answer.", { code: "left", resumable: true });
    this.#close();
    this.#settle.reject(this.#left);
  }

  take(name, data, link) {
    if (this.#isOver) return;
    this.#heardAt = Date.now();
    this.isKnown = true;
    this.transport = link.name;
    this.#move("streaming");
    if (name === "session") {
      this.reference = data.reference;
      this.#silence = link.silence = data.silence_seconds * 1000;
      this.#window = data.resume_window_seconds * 1000;
      link.alive(0);
      this.#parts.network.clock(link.askedAt, data.server_time);
      this.#tell(name, data);
    } else if (name === "token") {
      if (data.seq > this.seq) this.#append(data.text, (link.cursor = data.seq));
    } else if (name === "done" || name === "error") {
      this.#finish(data);
    } else if (name === "complete") {
      link.close((link.isComplete = true));
    } else if (name === "interrupted") {
      link.close(ServerError.from(data.error, { temporary: true }));
    } else if (/^(attempt|recover(ing|ed))$/.test(name)) {
      const key = name + data.attempt; // polls repeat it
      if (!this.#told.has(key)) this.#tell(name, data);
      this.#told.add(key);
    }
  }

  /** The page is back, or its network: connections may be dead unnoticed. */
  wake(patience) {
    for (const end of this.#pauses) end();
    if (Date.now() - this.#link?.heardAt > patience) this.#link.close(new NetworkError());
  }

  hide(isClosing) {
    this.#save();
    this.#ack();
    if (isClosing && this.#options.stopOnClose) this.stop(true).catch(() => {});
  }

  /** Ends early when the page wakes, or the answer is over. */
  async pause(ms) {
    if (this.#isOver) return;
    await new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        this.#pauses.delete(end);
        resolve();
      };
      const timer = setTimeout(end, ms);
      this.#pauses.add(end);
    });
  }

  async #run() {
    try {
      if (this.id) await this.#recall();
      else await this.#create();
      await this.#follow();
    } catch (error) {
      if (!this.#isOver) this.#fail(error);
    }
  }

  /** One key for all tries: there is one answer. */
  async #create() {
    const { idempotencyKey = random(16), level, variant } = this.#options;
    const headers = {
      ...this.headers,
      "Content-Type": "application/json",
      "Idempotency-Key": idempotencyKey,
      ...(level && { "X-Unbroken-Level": level }),
      ...(variant && { "X-Unbroken-Variant": variant }),
    };
    const init = { method: "POST", headers, body: JSON.stringify(this.request) };
    const { id, reference } = await this.#persist(() =>
      this.#parts.http.json("/v1/sessions", { ...init, signal: AbortSignal.timeout(60_000) }),
    );
    Object.assign(this, { id, reference });
    this.#save();
    this.#tell("change");
  }

  async #recall() {
    const cached = await this.#parts.cache.get(this.id);
    if (!cached || this.#isOver) return;
    const { reference, request, text, seq, end } = cached;
    Object.assign(this, { reference, request, isKnown: true });
    this.#acked = seq;
    if (text) this.#append(text, seq);
    if (end) this.#finish(end);
  }

  async #follow() {
    const { ladder, http } = this.#parts;
    const tried = new Set();
    let [failures, silences, refused] = [0, 0, ""];
    while (!this.#isOver) {
      const name = ladder.next(tried);
      if (!name) {
        tried.clear();
        await this.#backoff(failures++);
        continue;
      }
      const { seq } = this;
      const link = (this.#link = new Link(name, this, this.#parts, this.#silence));
      let error;
      try {
        await TRANSPORTS[name](link);
      } catch (thrown) {
        error = thrown;
      }
      this.#link = null;
      link.close();
      if (this.#isOver) return;
      if (link.isComplete) return void (await this.#learnEnd());
      if (this.seq > seq) failures = silences = 0;
      if (link.isOpen) {
        ladder.works(name);
        tried.clear();
        refused = "";
      }
      if (link.isOpen && !error) {
        // All is well, but nothing may spin.
        if (this.seq === seq && Date.now() - link.askedAt < FIRST_BACKOFF) await this.pause(FIRST_BACKOFF);
      } else if (error?.status === 401 && link.token && !refused) {
        refused = link.token;
        await this.#persist(() => http.token(refused, error));
      } else {
        this.#judge(error, failures);
        if (link.isSilent) silences++;
        if (link.isOpen && silences < 2) {
          await this.#backoff(failures++, error);
        } else {
          // Perhaps its kind does not get through: does another?
          ladder.failed(name, link.isSilent ? 2 : 1);
          tried.add(name);
          this.#lose();
        }
      }
    }
  }

  /** The log ends at our cursor. How? */
  async #learnEnd() {
    const path = `/v1/sessions/${this.id}?answer=0`;
    const session = await this.#persist(() => this.#parts.http.json(path, { headers: this.headers }));
    this.#finish({ ...session, seq: this.seq + 1 });
  }

  async #persist(work) {
    for (let failures = 0; ; failures++) {
      try {
        return await work();
      } catch (error) {
        this.#judge(error, failures);
        await this.#backoff(failures, error);
      }
    }
  }

  /** Throws where trying again is in vain. */
  #judge(error, failures) {
    const { temporary, resumable, name, status } = error ?? new NetworkError();
    // What fetch and JSON throw when the network fails them.
    const isNetwork = /^(Type|Syntax|Timeout)Error$/.test(name);
    if (!(temporary || resumable || isNetwork || (status === 500 && failures < 3))) throw error;
    if (Date.now() - this.#heardAt < this.#window) return;
    const fields = { code: "resume_window_passed", resumable: false, cause: error };
    throw new NetworkError("The gateway was away for too long.", fields);
  }

  /** Longer each time, never in step with others. */
  async #backoff(failures, error) {
    this.#lose();
    const most = Math.min(10_000, FIRST_BACKOFF * 2 ** failures);
    await this.pause(Math.max(50, Math.random() * most, (error?.retryAfter ?? 0) * 1000));
    // Until it is back; browsers may be wrong about it.
    if (globalThis.navigator?.onLine === false) await this.pause(30_000);
  }

  #lose() {
    if (this.state !== "streaming") return;
    this.#reconnects++;
    this.#parts.network.lost();
    this.#move("reconnecting");
  }

  #append(text, seq) {
    const now = Date.now();
    this.#paintedAt ??= now;
    this.#largestGap = Math.max(this.#largestGap, now - (this.#textAt ?? now));
    this.#textAt = now;
    this.text += text;
    this.seq = seq;
    this.#tell("text", { seq, text });
    this.#tell("change");
    if (!this.#readers && !this.#isPaced) this.#note(seq);
    this.#saving ??= setTimeout(() => this.#save(), 500);
  }

  #finish(end) {
    this.#end = end;
    const { state, finish_reason: finishReason, usage = null, error } = end;
    const { id, reference, text } = this;
    if (finishReason === "content_filter") {
      if (this.transport) this.#parts.options.onContentViolation?.({ id, reference, text });
      this.#fail(new ContentViolation("Ended by the content rules.", { code: finishReason, text }));
    } else if (error || !STATES[state]) {
      const code = end.error_code || `session_${state}`;
      this.#fail(ServerError.from(error ?? { message: "The answer ended early.", code }));
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
    this.error = error;
    this.#move("failed");
    this.#close();
    // What the gateway has no more is kept nowhere.
    if ([404, 409, 410].includes(error.status) && this.id) this.#parts.cache.delete(this.id);
    this.#tell("error", error);
    this.#settle.reject(error);
  }

  #close() {
    this.#save();
    if (!this.#left && this.transport) {
      if (!this.#readers && !this.#isPaced && this.#end) this.#note(this.#end.seq);
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
    this.#save();
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #change() {
    return new Promise((resolve) => this.addEventListener("change", resolve, { once: true }));
  }

  #save() {
    clearTimeout(this.#saving);
    this.#saving = null;
    const { id, reference, request, text, seq } = this;
    if (id) this.#parts.cache.put({ id, reference, request, text, seq, end: this.#end });
  }

  #note(seq) {
    this.#shown = Math.max(this.#shown, Math.min(seq, this.#end?.seq ?? this.seq));
    if (this.#isOver) this.#ack();
    else this.#acking ??= setTimeout(() => this.#ack(), this.#link?.ack ? 1000 : 5000);
  }

  #ack() {
    clearTimeout(this.#acking);
    this.#acking = null;
    if (!this.transport || this.#shown <= this.#acked) return;
    const seq = (this.#acked = this.#shown);
    if (this.#link?.ack) this.#link.ack(seq);
    else this.#post("ack", { seq });
  }

  #report() {
    const { options, network } = this.#parts;
    if (options.report === false) return;
    this.#post("report", {
      first_paint_ms: this.#paintedAt && this.#paintedAt - this.#beganAt,
      largest_gap_ms: this.#largestGap,
      reconnects: this.#reconnects,
      transport: this.transport,
      rtt_ms: network.rtt,
      drift_ms: network.drift,
      bytes_per_second: network.bytesPerSecond,
    });
  }

  /** Even while the page closes. What is lost is not missed. */
  #post(what, body) {
    const init = { method: "POST", headers: this.headers, body: JSON.stringify(body), keepalive: true };
    this.#parts.http.fetch(`/v1/sessions/${this.id}/${what}`, init).catch(() => {});
  }
}

export class UnbrokenClient {
  network = new Network();
  #answers = new Set();
  #parts;
  #closing = new AbortController();

  constructor({ baseUrl = new URL(import.meta.url).origin, token, refreshToken, ...options }) {
    const { transports = Object.keys(TRANSPORTS), namespace = "", storage } = options;
    const { maxCachedSessions: sessions = 50, maxCachedBytes: bytes = 5_000_000 } = options;
    this.#parts = {
      options,
      network: this.network,
      answers: this.#answers,
      http: new Http(baseUrl, token, refreshToken),
      ladder: new Ladder(transports),
      cache: new Cache(`unbroken:${namespace}`, storage, { sessions, bytes }),
    };
    const page = globalThis.document;
    const all = (call) => () => this.#answers.forEach(call);
    const moved = all((answer) => answer.wake(1000));
    const listen = (target, name, call) => target?.addEventListener?.(name, call, this.#closing);
    listen(globalThis, "online", moved);
    listen(globalThis, "pageshow", moved);
    listen(globalThis, "pagehide", all((answer) => answer.hide(true)));
    listen(page, "visibilitychange", all((answer) => (page.hidden ? answer.hide() : answer.wake(9000))));
  }

  start(request, options) {
    options?.signal?.throwIfAborted();
    return new Answer(this.#parts, { ...options, request });
  }

  resume(id, options) {
    return new Answer(this.#parts, { ...options, id });
  }

  async sessions() {
    const records = await this.#parts.cache.list();
    return records.map(({ end, bytes, ...record }) => ({ ...record, ended: !!end }));
  }

  forget(id) {
    return this.#parts.cache.delete(id);
  }

  close() {
    this.#closing.abort();
    for (const answer of this.#answers) answer.leave();
    this.#parts.cache.close();
  }
}
