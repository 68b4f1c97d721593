/** Requests to the gateway, with a token that may run out. */

import { NetworkError, ServerError, UnbrokenError } from "./errors.js";

export class Http {
  #given; // what the page gave: a token, or where to get one
  #refreshToken;
  #token = null; // a promise of the token in use
  #refreshing = null;

  constructor(baseUrl, token, refreshToken) {
    this.baseUrl = baseUrl.replace(/\/$/, "");
    this.#given = token;
    this.#refreshToken = refreshToken ?? (typeof token === "function" ? token : null);
  }

  /** The token in use. */
  token() {
    this.#token ??= this.#ask(typeof this.#given === "function" ? this.#given : () => this.#given);
    return this.#token;
  }

  /**
   * Replaces a token that the server has refused with `error`; all that wait share one call.
   * Throws `error` where there is no other token to be had.
   */
  async refresh(refused, error) {
    if ((await this.token()) !== refused) return; // somebody else has been here
    if (!this.#refreshToken) throw error;
    this.#refreshing ??= this.#ask(this.#refreshToken).finally(() => (this.#refreshing = null));
    const token = await this.#refreshing;
    if (token === refused) throw error;
    this.#token = Promise.resolve(token);
  }

  async #ask(source) {
    try {
      return await source();
    } catch (error) {
      this.#token = null;
      if (error instanceof UnbrokenError) throw error;
      // A page that fetches its token fails like any request when the network is away.
      if (error instanceof TypeError) throw new NetworkError("No token could be fetched.", { cause: error });
      throw new UnbrokenError("The page has no token.", { code: "no_token", resumable: true, cause: error });
    }
  }

  /**
   * A response with a good status. Throws NetworkError, ServerError, or the reason of `signal`.
   * @param {string} path
   * @param {RequestInit} [init]
   */
  async fetch(path, { headers, ...init } = {}) {
    for (let fresh = false; ; fresh = true) {
      const token = await this.token();
      let response;
      try {
        response = await fetch(this.baseUrl + path, {
          cache: "no-store",
          credentials: "omit", // the token says who we are; cookies would only ask for CSRF tokens
          ...init,
          headers: { Authorization: `Bearer ${token}`, ...headers },
        });
      } catch (error) {
        throw gone(init.signal, error);
      }
      if (response.ok) return response;
      const error = await ServerError.of(response);
      if (response.status !== 401 || fresh) throw error;
      await this.refresh(token, error);
    }
  }
}

/** What to throw for a request that broke off. */
export function gone(signal, cause) {
  return signal?.aborted ? signal.reason : new NetworkError("The gateway cannot be reached.", { cause });
}
