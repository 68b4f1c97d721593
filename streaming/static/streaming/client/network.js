/** What is known of the way to the gateway: how long, how wide, how safe; and which rung holds. */

const WEAK_RTT_MS = 400;
const WEAK_BYTES_PER_SECOND = 20_000;
const MEMORY_MS = 60_000;
const BURST_MS = 100;
const BURST_BYTES = 4096;

export class Network {
  /** Milliseconds; the best of the last minute. null: not known yet. */
  rtt = null;
  /** Milliseconds that the server's clock is ahead of ours. */
  drift = 0;
  /** Of the last burst that was long enough to tell. null: not known yet. */
  bytesPerSecond = null;
  #measuredAt = 0;
  #losses = [];
  #burst = null;

  /** The server has answered at `serverTime` (ISO 8601) what was asked at `askedAt`. */
  clock(askedAt, serverTime) {
    const now = Date.now();
    const rtt = now - askedAt;
    if (this.rtt !== null && rtt > this.rtt && now - this.#measuredAt < MEMORY_MS) return;
    this.#measuredAt = now;
    this.rtt = rtt;
    this.drift = Math.round(Date.parse(serverTime) + rtt / 2 - now);
  }

  /** Tokens come at the engine's pace; only bytes that follow each other closely tell the network's. */
  bytes(count) {
    const now = Date.now();
    const burst = this.#burst;
    if (!burst || now - burst.last > BURST_MS) {
      this.#burst = { began: now, last: now, bytes: 0 };
      return;
    }
    burst.last = now;
    burst.bytes += count;
    if (burst.bytes >= BURST_BYTES && now > burst.began) {
      this.bytesPerSecond = Math.round((burst.bytes * 1000) / (now - burst.began));
    }
  }

  lost() {
    this.#losses = [...this.#losses.filter((at) => Date.now() - at < MEMORY_MS), Date.now()];
  }

  get isWeak() {
    return (
      this.rtt > WEAK_RTT_MS ||
      (this.bytesPerSecond ?? Infinity) < WEAK_BYTES_PER_SECOND ||
      this.#losses.filter((at) => Date.now() - at < MEMORY_MS).length > 2 ||
      /2g|3g/.test(globalThis.navigator?.connection?.effectiveType ?? "")
    );
  }
}

const BLAME_MS = 60_000;
const MAX_BLAME_MS = 600_000;

/**
 * The transports, best first. One is left out for a while when a lower one works where it did not;
 * when all fail, none is to blame. One quick failure may have been the server's: two count.
 */
export class Ladder {
  #rungs;

  constructor(names) {
    this.#rungs = names.map((name) => ({ name, strikes: 0, blamed: 0, until: 0 }));
  }

  /** The best that was not tried in this round; undefined: the round is over. */
  next(tried) {
    const name = this.#rungs.find((rung) => !tried.has(rung.name) && rung.until <= Date.now())?.name;
    if (!name) for (const rung of this.#rungs) rung.strikes = 0;
    return name;
  }

  failed(name, strikes) {
    this.#rung(name).strikes += strikes;
  }

  /** `name` works: what failed above it, twice, is left alone for a while. */
  works(name) {
    for (const rung of this.#rungs) {
      if (rung.name === name) {
        rung.strikes = rung.blamed = 0;
        return;
      }
      if (rung.strikes < 2) continue;
      rung.strikes = 0;
      rung.until = Date.now() + Math.min(MAX_BLAME_MS, BLAME_MS * 2 ** rung.blamed++);
    }
  }

  #rung(name) {
    return this.#rungs.find((rung) => rung.name === name);
  }
}
