/**
 * Bring a list of nodes to what they should be, changing as little as possible: what a reader has
 * selected or focused stays selected and focused while the text grows behind it. An element with
 * `data-kept` is left alone by another one with the same value.
 */

/**
 * @param {Node} parent
 * @param {ChildNode[]} old children of `parent`, next to each other; new ones are put after them
 * @param {ChildNode[]} wanted
 * @param {ChildNode | null} before what follows the old ones in `parent`
 * @returns {ChildNode[]} what stands there now
 */
export function patch(parent, old, wanted, before = null) {
  const now = wanted.map((node, i) => (i < old.length ? settle(old[i], node) : node));
  for (const node of old.slice(wanted.length)) node.remove();
  for (const node of now.slice(old.length)) parent.insertBefore(node, before);
  return now;
}

/** The old node made like the wanted one; or the wanted one in its place. */
function settle(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE && wanted.nodeType === Node.TEXT_NODE) {
    const [had, has] = [old.data, wanted.data];
    if (has !== had) {
      if (has.startsWith(had)) old.appendData(has.slice(had.length));
      else old.data = has;
    }
    return old;
  }
  if (old.dataset?.kept && old.dataset.kept === wanted.dataset?.kept) return old;
  if (!alike(old, wanted)) {
    old.replaceWith(wanted);
    return wanted;
  }
  patch(old, [...old.childNodes], [...wanted.childNodes]);
  return old;
}

function alike(a, b) {
  if (a.nodeName !== b.nodeName || a.nodeType !== Node.ELEMENT_NODE) return false;
  if (a.attributes.length !== b.attributes.length) return false;
  return [...a.attributes].every(({ name, value }) => b.getAttribute(name) === value);
}
