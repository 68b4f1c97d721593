/** The way to the gateway. */

export class UnbrokenError extends Error {
  code = "";
  reference = "";
  resumable = false;
  temporary = false;

  constructor(message, fields) {
    super(message, fields);
    Object.assign(this, { name: new.target.name }, fields);
  }
}

export class NetworkError extends UnbrokenError {
  constructor(message = "The gateway cannot be reached.", fields) {
    super(message, { code: "network", resumable: true, temporary: true, ...fields });
  }
}

export class ServerError extends UnbrokenError {
  /** From an OpenAI error object. */
  static from({ message, ...error }, fields) {
    const status = error.type === "authentication_error" ? 401 : 0;
    return new ServerError(message, { status, ...error, ...fields });
  }
}

export class ContentViolation extends UnbrokenError {}

async function refusal(response) {
  const { status, headers } = response;
  const fields = {
    status,
    temporary: [408, 425, 502, 503, 504].includes(status),
    retryAfter: Number(headers.get("Retry-After")) || 0,
  };
  try {
    return ServerError.from((await response.json()).error, fields);
  } catch {
    return new (status < 500 ? ServerError : NetworkError)(`A proxy answered ${status}.`, fields);
  }
}

/** Requests with a token that may run out; one new one is fetched for all. */
export class Http {
  #token;
  #source;
  #refreshing;

  constructor(baseUrl, token, refreshToken) {
    const isFunction = typeof token === "function";
    this.baseUrl = baseUrl.replace(/\/$/, "");
    this.#source = refreshToken ?? (isFunction && token);
    this.#token = !isFunction && token;
  }

  async token(refused, error) {
    if (this.#token && this.#token !== refused) return this.#token;
    if (!this.#source) throw error ?? new UnbrokenError("There is no token.", { code: "no_token" });
    this.#refreshing ??= (async () => this.#source())().finally(() => (this.#refreshing = null));
    this.#token = await this.#refreshing;
    if (this.#token === refused) throw error;
    return this.#token;
  }

  /** A good response. Without cookies: the token says who we are. */
  async fetch(path, { headers, ...init }, refused, error) {
    const token = await this.token(refused, error);
    const response = await fetch(this.baseUrl + path, {
      cache: "no-store",
      credentials: "omit",
      ...init,
      headers: { ...headers, Authorization: `Bearer ${token}` },
    });
    if (response.ok) return response;
    const problem = await refusal(response);
    if (response.status !== 401 || refused) throw problem;
    return this.fetch(path, { headers, ...init }, token, problem);
  }

  async json(path, init) {
    return (await this.fetch(path, init)).json();
  }
}

const MINUTE = 60_000;

export class Network {
  rtt = null;
  drift = 0;
  bytesPerSecond = null;
  #clockedAt = 0;
  #losses = [];
  #burst;

  /** The quickest answer knows best. */
  clock(askedAt, serverTime) {
    const now = Date.now();
    const rtt = now - askedAt;
    if (this.rtt !== null && rtt > this.rtt && now - this.#clockedAt < MINUTE) return;
    this.#clockedAt = now;
    this.rtt = rtt;
    this.drift = Math.round(Date.parse(serverTime) + rtt / 2 - now);
  }

  /** Only bytes in a row tell the network's pace; the others, the engine's. */
  bytes(count) {
    const now = Date.now();
    if (!(now - this.#burst?.last < 100)) this.#burst = { began: now, bytes: -count };
    const burst = this.#burst;
    burst.last = now;
    burst.bytes += count;
    if (burst.bytes > 4096 && now > burst.began) {
      this.bytesPerSecond = Math.round((burst.bytes * 1000) / (now - burst.began));
    }
  }

  lost() {
    this.#losses = [Date.now(), ...this.#losses].slice(0, 3);
  }

  get isWeak() {
    return (
      this.rtt > 400 ||
      (this.bytesPerSecond ?? Infinity) < 20_000 ||
      Date.now() - this.#losses[2] < MINUTE ||
      /[23]g/.test(globalThis.navigator?.connection?.effectiveType)
    );
  }
}

/**
 * Transports, best first. One that fails where a lower one works is left out for a while. A quick
 * failure may have been the server's: two count, and none when all fail.
 */
export class Ladder {
  #rungs;

  constructor(names) {
    this.#rungs = names.map((name) => ({ name, strikes: 0, blames: 0, until: 0 }));
  }

  next(tried) {
    const rung = this.#rungs.find(({ name, until }) => !tried.has(name) && until <= Date.now());
    if (!rung) for (const each of this.#rungs) each.strikes = 0;
    return rung?.name;
  }

  failed(name, strikes) {
    this.#rungs.find((rung) => rung.name === name).strikes += strikes;
  }

  works(name) {
    for (const rung of this.#rungs) {
      if (rung.name === name) return void (rung.strikes = rung.blames = 0);
      if (rung.strikes > 1) rung.until = Date.now() + Math.min(10, 2 ** rung.blames++) * MINUTE;
    }
  }
}

// Each follows one connection, to its end in good order or by throwing. None begins an answer.

/** The token is its first message: browsers send no headers with a handshake. */
async function websocket(link) {
  const { http } = link;
  if (!globalThis.WebSocket) throw new NetworkError();
  const token = (link.token = await http.token());
  const url = `${http.baseUrl.replace(/^http/, "ws")}/ws/chat/?${new URLSearchParams(link.wishes())}`;
  const socket = new WebSocket(url, ["unbroken.v1"]);
  const send = (type, message) => socket.readyState === 1 && socket.send(JSON.stringify({ type, ...message }));
  setTimeout(() => link.ack || socket.close(), 5000);
  let refused;
  try {
    await new Promise((resolve, reject) => {
      link.signal.onabort = () => reject(link.signal.reason);
      socket.onopen = () => {
        link.askedAt = Date.now();
        send("auth", { token });
      };
      socket.onmessage = ({ data }) => {
        link.alive(data.length);
        const { type, ...message } = JSON.parse(data);
        if (type === "ready") {
          link.network.clock(link.askedAt, message.server_time);
          send("wish", link.wishes());
          link.askedAt = Date.now();
          send("resume", { session: link.id, seq: link.cursor, ref: "resume" });
          link.ack = (seq) => send("ack", { session: link.id, seq });
        } else if (type === "error" && message.seq === undefined) {
          // Those of acks and wishes concern nobody.
          const error = ServerError.from(message.error);
          if (!link.ack) refused = error;
          if (message.ref || message.session) reject(error);
        } else {
          link.event(type, message);
        }
      };
      socket.onclose = ({ code }) => {
        if (code === 1000 || code === 1012) resolve();
        else reject(refused ?? new NetworkError());
      };
    });
  } finally {
    socket.onmessage = socket.onclose = link.ack = null;
    socket.close();
  }
}

async function sse(link) {
  const response = await link.ask(link.wishes(), "text/event-stream");
  if (response.status === 204) return link.event("complete");
  if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) throw new NetworkError();
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      link.alive(value.length);
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const { event, data } = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
        if (event) link.event(event, JSON.parse(data));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function longpoll(link, wait = Math.round(link.silence / 1500)) {
  const response = await link.ask({ wait }, "application/json");
  if (response.status === 204) return link.event("complete");
  const text = await response.text();
  link.alive(text.length);
  for (const { event, data } of JSON.parse(text).events) link.event(event, data);
  link.isOpen = true;
}

/** For networks that let nothing wait; often enough that the gateway does not think we left. */
async function plain(link) {
  await longpoll(link, 0);
  await link.pause(1500);
}

export const TRANSPORTS = { websocket, sse, longpoll, plain };
