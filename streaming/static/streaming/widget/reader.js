/** Whose token it is, as far as a browser may know. */

const PREFIX = "ub-embed-";

/**
 * The digest of the reader that an embed token speaks for: the same in all tokens of one end user,
 * another in everybody else's. Nothing is verified here; it only keeps apart what is stored.
 * @param {string} token
 * @returns {string} 16 hexadecimal digits; "" for what is no such token
 */
export function readerOf(token) {
  if (typeof token !== "string" || !token.startsWith(PREFIX)) return "";
  const [payload] = token.slice(PREFIX.length).split(".");
  try {
    const reader = JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/")))[2];
    return /^[0-9a-f]{16}$/.test(reader) ? reader : "";
  } catch {
    return ""; // forged, or another version's: the gateway decides what it is good for
  }
}
