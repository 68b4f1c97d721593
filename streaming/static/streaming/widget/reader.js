/** Whose token it is, as far as a browser may know. */

const PREFIX = "ub-embed-";
const DEMO = /^ubd_([\w-]{1,128}):/; // of the demo pages: names its visitor, who is nobody but this browser

/**
 * The digest of the reader that an embed token speaks for: the same in all tokens of one end user,
 * another in everybody else's. Nothing is verified here; it only keeps apart what is stored.
 * @param {string} token
 * @returns {string} 16 hexadecimal digits (the visitor of a demo token); "" for what is no such token
 */
export function readerOf(token) {
  if (typeof token !== "string") return "";
  if (!token.startsWith(PREFIX)) return DEMO.exec(token)?.[1] ?? "";
  const [payload] = token.slice(PREFIX.length).split(".");
  try {
    const reader = JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/")))[2];
    return /^[0-9a-f]{16}$/.test(reader) ? reader : "";
  } catch {
    return ""; // forged, or another version's: the gateway decides what it is good for
  }
}
