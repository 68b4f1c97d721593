/**
 * What the widget says, in the reader's language. Products add languages, or say things otherwise:
 *
 *     import { addStrings } from "…/static/streaming/widget.js";
 *     addStrings("nl", { send: "Versturen", … });
 *
 * A string may be an object of plural forms (Intl.PluralRules), chosen by `count`.
 */

import { LANGUAGES } from "./languages.js";

const RIGHT_TO_LEFT = new Set(["ar", "dv", "fa", "he", "ks", "ku", "ps", "sd", "ug", "ur", "yi"]);
const FALLBACK = "en";
const table = new Map(Object.entries(LANGUAGES));

/** Called when strings are added; the widgets on the page say things anew. */
export const changed = new EventTarget();

/**
 * @param {string} language a BCP 47 tag: "nl", "pt-BR"
 * @param {Record<string, string | Record<string, string>>} strings those that differ are enough
 */
export function addStrings(language, strings) {
  const tag = language.toLowerCase();
  table.set(tag, { ...table.get(tag), ...strings });
  changed.dispatchEvent(new Event("change"));
}

/**
 * The strings for the first of these languages that is known.
 * @param {readonly string[]} wanted BCP 47 tags, the dearest first
 */
export function stringsFor(wanted) {
  for (const tag of wanted) {
    const parts = String(tag).toLowerCase().split("-");
    for (let length = parts.length; length > 0; length -= 1) {
      const found = parts.slice(0, length).join("-");
      if (table.has(found)) return new Strings(found, canonical(tag, found));
    }
  }
  return new Strings(FALLBACK, FALLBACK);
}

/** The reader's tag, for numbers and plurals; what we found if Intl does not know it. */
function canonical(tag, found) {
  try {
    return Intl.getCanonicalLocales(tag)[0];
  } catch {
    return found;
  }
}

export class Strings {
  #own;
  #locale;

  constructor(language, locale) {
    this.language = language;
    this.#own = [table.get(language), table.get(language.split("-")[0]), table.get(FALLBACK)];
    this.#locale = locale;
  }

  get direction() {
    return RIGHT_TO_LEFT.has(this.language.split("-")[0]) ? "rtl" : "ltr";
  }

  /**
   * @param {string} key
   * @param {Record<string, string | number>} values for the `{names}` in it; numbers as the reader writes them
   */
  say(key, values = {}) {
    let text = this.#own.find((strings) => strings?.[key] !== undefined)?.[key] ?? key;
    if (typeof text === "object") {
      text = text[new Intl.PluralRules(this.#locale).select(values.count)] ?? text.other;
    }
    return text.replace(/\{(\w+)\}/g, (whole, name) => {
      const value = values[name];
      if (value === undefined) return whole;
      return typeof value === "number" ? this.number(value) : value;
    });
  }

  number(value) {
    return new Intl.NumberFormat(this.#locale).format(value);
  }

  has(key) {
    return this.#own.some((strings) => strings?.[key] !== undefined);
  }

  /** How many words a text has, also where they are not set apart by spaces. */
  words(text) {
    if (!Intl.Segmenter) return text.split(/\s+/).filter(Boolean).length;
    let count = 0;
    const segmenter = new Intl.Segmenter(this.#locale, { granularity: "word" });
    for (const { isWordLike } of segmenter.segment(text)) count += isWordLike ? 1 : 0;
    return count;
  }
}
