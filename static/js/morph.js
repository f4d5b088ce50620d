/* Makes the children of an element those that are wanted, keeping every node that can stay: what the reader has
   selected, focused or opened in a growing text is still there after the next frame.

   An element that holds more than its markup says (a frame of code, a formula) is given to `keep(old, wanted)` first,
   which returns whether the old one now stands for the new. */

export function morph(place, wanted, keep) {
  let old = place.firstChild;
  for (let next = wanted.firstChild; next;) {
    const after = next.nextSibling;
    if (old && merge(old, next, keep)) old = old.nextSibling;
    else if (old) {
      const following = old.nextSibling;
      old.replaceWith(next);
      old = following;
    } else place.append(next);
    next = after;
  }
  while (old) {
    const following = old.nextSibling;
    old.remove();
    old = following;
  }
}

function merge(old, next, keep) {
  if (old.nodeName !== next.nodeName || old.namespaceURI !== next.namespaceURI) return false;
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data === next.data) return true;
    // Appending leaves a selection where it is.
    if (next.data.startsWith(old.data)) old.appendData(next.data.slice(old.data.length));
    else old.data = next.data;
    return true;
  }
  const kept = keep?.(old, next);
  if (kept !== undefined) return kept;
  const names = next.getAttributeNames();
  // In the same order too, so that the end is the same to the letter however it came about.
  if (old.getAttributeNames().join() !== names.join()) for (const name of old.getAttributeNames()) old.removeAttribute(name);
  for (const name of names) {
    const value = next.getAttribute(name);
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morph(old, next, keep);
  return true;
}
