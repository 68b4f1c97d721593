/**
 * A safe subset of Markdown, rendered while it grows: headings, paragraphs, nested lists, quotes,
 * tables, rules, fenced code; what markdown_inline.js knows inside. DOM nodes, never HTML from text.
 *
 * Text up to the last blank line outside a fence is settled and rendered once; only the tail after
 * it is rendered again, and changed only where it differs. A tail that grows without blank lines is
 * settled by force, so that no answer, however long or odd, costs more per frame than another.
 *
 * Marks (the seams) sit at offsets of the source. Every run of text is one slice of the source, so a
 * mark comes out exactly between the two characters it belongs to, or at the next visible one.
 */

import { fill, Inline, shielded } from "./markdown_inline.js";
import { patch } from "./patch.js";

const FENCE = /^( {0,8})(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const RULE = /^ {0,3}(?:-{3,}|\*{3,}|_{3,})\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s{0,24})([-*+]|\d{1,9}[.)])\s+/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

const INNER = "ul, ol, li, blockquote > p, pre > code, table, thead, tbody, tr, th, td";

const MAX_TAIL = 12_000; // characters that are rendered again in a frame
const PER_FRAME = 40_000; // characters that are settled in a frame

/**
 * What a page adds to a block of code: an element to stand before it, or nothing.
 * @typedef {(language: string) => Element | null} CodeHead
 */

export class MarkdownView {
  #root;
  #codeHead;
  #source = "";
  #settled = 0;
  #tail = [];
  #marks = [];
  #placed = 0; // how many marks are in settled text
  #fence = null; // the fence that was open where settled text ends

  /**
   * @param {HTMLElement} root
   * @param {{codeHead?: CodeHead}} options
   */
  constructor(root, { codeHead = () => null } = {}) {
    this.#root = root;
    this.#codeHead = codeHead;
  }

  get source() {
    return this.#source;
  }

  append(text) {
    this.#source += text;
  }

  /** Put what `make()` returns where the text now ends. */
  mark(make) {
    this.#marks.push({ at: this.#source.length, make });
  }

  /** Bring the DOM up to date, whatever that costs. */
  render() {
    while (!this.renderSome());
  }

  /** As much as fits into a frame; whether that was all. */
  renderSome() {
    for (let budget = PER_FRAME; budget > 0; ) {
      const { end, fence } = this.#settle();
      if (end === this.#settled) return this.#renderTail();
      budget -= end - this.#settled;
      const blocks = this.#blocks();
      patch(this.#root, this.#tail, blocks.render(this.#settled, end));
      this.#tail = [];
      this.#placed = blocks.placed;
      this.#settled = end;
      this.#fence = fence && (blocks.fence ?? this.#fence);
    }
    return false;
  }

  #renderTail() {
    const blocks = this.#blocks();
    const nodes = blocks.render(this.#settled, this.#source.length);
    this.#tail = patch(this.#root, this.#tail, blocks.placeRest(nodes));
    return true;
  }

  #blocks() {
    return new Blocks(this.#source, this.#marks, this.#placed, this.#fence, this.#codeHead);
  }

  /** Up to where text is settled from now on, and whether a fence is open there. */
  #settle() {
    const [start, source] = [this.#settled, this.#source];
    const horizon = Math.min(source.length, start + MAX_TAIL);
    let settled = start;
    let lastLine = start;
    let open = this.#fence?.open ?? "";
    let fenceAtEnd = false;
    let fenceAtLine = false;
    for (const { text, end, complete } of lines(source, start, horizon)) {
      open = nextFence(open, text);
      if (!complete) break;
      [lastLine, fenceAtLine] = [end, Boolean(open)];
      if (!open && !text.trim()) [settled, fenceAtEnd] = [end, false];
    }
    if (settled > start || source.length - start < MAX_TAIL) return { end: settled, fence: fenceAtEnd };
    if (lastLine > start) return { end: lastLine, fence: fenceAtLine };
    // One line without an end: it is broken at a space, or else between two characters.
    const space = source.lastIndexOf(" ", horizon);
    let end = space > start + MAX_TAIL / 2 ? space + 1 : horizon;
    if (/[\ud800-\udbff]/.test(source[end - 1])) end -= 1;
    return { end, fence: Boolean(this.#fence) };
  }
}

/** The fence that is open after this line: its characters, or "". */
function nextFence(open, line) {
  const match = FENCE.exec(line);
  if (!match) return open;
  if (!open) return match[2];
  const closes = match[2][0] === open[0] && match[2].length >= open.length && !match[3];
  return closes ? "" : open;
}

function* lines(source, start, end) {
  while (start < end) {
    const newline = source.indexOf("\n", start);
    const complete = newline >= 0 && newline < end;
    const next = complete ? newline + 1 : end;
    yield { text: source.slice(start, complete ? newline : end), start, end: next, complete };
    start = next;
  }
}

/** One pass over a stretch of lines, which may begin inside a fence. */
class Blocks {
  /** The fence that is open at the end of what was rendered: {open, indent}. */
  fence = null;

  constructor(source, marks, placed, fence, codeHead) {
    this.source = source;
    this.marks = marks;
    this.placed = placed;
    this.codeHead = codeHead;
    this.begun = fence;
  }

  /** @returns {HTMLElement[]} */
  render(start, end) {
    const all = [...lines(this.source, start, end)];
    const nodes = [];
    let lists = []; // the open lists, from the outermost: {indent, element}
    let i = this.begun && all.length ? this.#code(nodes, all, 0, this.begun) : 0;
    while (i < all.length) {
      const { text, start: begin, end: over } = all[i];
      const item = ITEM.exec(text);
      if (!text.trim()) {
        i += 1;
        continue;
      }
      if (item && !RULE.test(text)) {
        const next = this.#continuation(all, i + 1);
        const list = this.#list(nodes, lists, item);
        list.append(this.#block("li", begin + item[0].length, all[next - 1].end));
        i = next;
        continue; // the next item may join the same list
      }
      lists = [];
      const heading = HEADING.exec(text);
      if (nextFence("", text)) {
        i = this.#fence(nodes, all, i);
      } else if (heading) {
        const level = Math.min(heading[1].length + 2, 6); // the page has h1 and h2 of its own
        nodes.push(this.#block(`h${level}`, begin + heading[0].length, over));
        i += 1;
      } else if (RULE.test(text)) {
        nodes.push(document.createElement("hr"));
        i += 1;
      } else if (QUOTE.test(text)) {
        i = this.#quote(nodes, all, i);
      } else if (this.#isTable(all, i)) {
        i = this.#table(nodes, all, i);
      } else {
        const next = this.#continuation(all, i + 1);
        nodes.push(this.#block("p", begin, all[next - 1].end));
        i = next;
      }
    }
    return nodes;
  }

  /** Marks at the very end of the text, where nothing follows yet. */
  placeRest(nodes) {
    if (this.placed === this.marks.length) return nodes;
    if (!nodes.length || nodes.at(-1).tagName === "HR") nodes.push(paragraph());
    let last = nodes.at(-1);
    while (last.lastElementChild?.matches(INNER)) last = last.lastElementChild;
    const parts = [];
    this.#marksUpTo(parts, Infinity);
    last.append(...parts);
    return nodes;
  }

  /** The index of the first line that no longer belongs to the paragraph or item before `i`. */
  #continuation(all, i) {
    while (i < all.length) {
      const { text } = all[i];
      if (!text.trim() || nextFence("", text) || HEADING.test(text) || ITEM.test(text)) break;
      if (QUOTE.test(text) || RULE.test(text) || this.#isTable(all, i)) break;
      i += 1;
    }
    return i;
  }

  /** The list that an item belongs to, by how far it is moved in. */
  #list(nodes, lists, [, space, bullet]) {
    const indent = space.replaceAll("\t", "    ").length;
    while (lists.length && indent < lists.at(-1).indent) lists.pop();
    const tag = /\d/.test(bullet) ? "OL" : "UL";
    let top = lists.at(-1);
    if (top && indent < top.indent + 2 && top.element.tagName !== tag) {
      lists.pop();
      top = lists.at(-1);
    }
    if (top && indent < top.indent + 2 && top.element.tagName === tag) return top.element;
    const element = document.createElement(tag);
    element.dir = "auto";
    if (tag === "OL") element.start = parseInt(bullet, 10);
    const into = top && indent >= top.indent + 2 ? top.element.lastElementChild : null;
    if (into) into.append(element);
    else nodes.push(element);
    lists.push({ indent, element });
    return element;
  }

  #fence(nodes, all, i) {
    const [, indent, open, language] = FENCE.exec(all[i].text);
    const next = { open, indent: indent.length, language };
    return this.#code(nodes, all, i + 1, next, all[i].end);
  }

  /** Code up to the end of its fence. `start` is where it begins if none of its lines is there yet. */
  #code(nodes, all, i, fence, start = all[i].start) {
    const continued = fence === this.begun;
    const pre = document.createElement("pre");
    const code = pre.appendChild(document.createElement("code"));
    pre.dir = "ltr";
    pre.tabIndex = 0; // it scrolls, also by keyboard
    if (continued) pre.className = "continued";
    let { open } = fence;
    const parts = [];
    for (; i < all.length && open; i += 1) {
      open = nextFence(open, all[i].text);
      if (!open) break;
      const line = all[i];
      const strip = Math.min(fence.indent, /^ */.exec(line.text)[0].length);
      this.#text(parts, line.start + strip, line.end, true);
      start = line.end;
    }
    fill(code, parts);
    this.fence = open ? fence : null;
    const head = continued ? null : this.codeHead(fence.language);
    if (!continued || code.firstChild) nodes.push(...(head ? [head, pre] : [pre]));
    return open ? i : i + 1;
  }

  #quote(nodes, all, i) {
    const quote = document.createElement("blockquote");
    quote.dir = "auto";
    let parts = [];
    const close = () => {
      if (parts.length) quote.append(fill(document.createElement("p"), parts));
      parts = [];
    };
    for (; i < all.length && QUOTE.test(all[i].text); i += 1) {
      const { text, start } = all[i];
      const begin = start + QUOTE.exec(text)[0].length;
      if (start + text.length === begin) {
        close();
        continue;
      }
      if (parts.length) parts.push("\n");
      parts.push(...this.#inline(begin, start + text.length));
    }
    close();
    nodes.push(quote);
    return i;
  }

  #isTable(all, i) {
    const [head, delimiters] = [all[i], all[i + 1]];
    if (!delimiters?.text.includes("|") || !head.text.includes("|")) return false;
    if (!DELIMITERS.test(delimiters.text.slice(0, 2000))) return false;
    return cells(head).length === cells(delimiters).length;
  }

  #table(nodes, all, i) {
    const frame = document.createElement("div");
    frame.className = "table";
    frame.tabIndex = 0; // it scrolls, also by keyboard
    const table = frame.appendChild(document.createElement("table"));
    table.dir = "auto";
    const width = cells(all[i]).length;
    const row = (parent, tag, line) => {
      const tr = parent.appendChild(document.createElement("tr"));
      for (const [start, end] of cells(line).slice(0, width)) {
        const cell = tr.appendChild(document.createElement(tag));
        fill(cell, this.#inline(start, end));
      }
    };
    row(table.appendChild(document.createElement("thead")), "th", all[i]);
    const body = table.appendChild(document.createElement("tbody"));
    for (i += 2; i < all.length && all[i].text.includes("|"); i += 1) row(body, "td", all[i]);
    nodes.push(frame);
    return i;
  }

  #block(tag, start, end) {
    while (end > start && /\s/.test(this.source[end - 1])) end -= 1;
    while (start < end && /\s/.test(this.source[start])) start += 1;
    const element = document.createElement(tag);
    if (tag !== "li") element.dir = "auto"; // the list knows, and its bullets stand by it
    return fill(element, this.#inline(start, end));
  }

  #inline(start, end) {
    const write = (parts, from, to, inCode) => this.#text(parts, from, to, inCode);
    return new Inline(this.source, write).parse(start, end);
  }

  #text(parts, start, end, inCode = false) {
    while (this.placed < this.marks.length && this.marks[this.placed].at < end) {
      const at = Math.max(this.marks[this.placed].at, start);
      if (at > start) parts.push(...shielded(this.source.slice(start, at), inCode));
      this.#marksUpTo(parts, at);
      start = at;
    }
    if (end > start) parts.push(...shielded(this.source.slice(start, end), inCode));
  }

  #marksUpTo(parts, at) {
    while (this.placed < this.marks.length && this.marks[this.placed].at <= at) {
      parts.push(this.marks[this.placed].make());
      this.placed += 1;
    }
  }
}

function paragraph() {
  const p = document.createElement("p");
  p.dir = "auto";
  return p;
}

/** The stretches of a table row's cells in the source, without the white space around them. */
function cells({ text, start }) {
  const found = [];
  let begin = /^\s*\|?/.exec(text)[0].length;
  const take = (end) => {
    const cell = text.slice(begin, end);
    const left = begin + (cell.length - cell.trimStart().length);
    found.push([start + left, start + Math.max(left, begin + cell.trimEnd().length)]);
    begin = end + 1;
  };
  for (let i = begin; i < text.length; i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === "|") take(i);
  }
  if (text.slice(begin).trim()) take(text.length);
  return found;
}
