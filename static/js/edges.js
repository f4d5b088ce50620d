/* What scrolls sideways fades at the edge behind which there is more: css knows it by `data-more`. */

export function fadeEdge(frame) {
  const left = frame.scrollWidth - frame.clientWidth - Math.abs(frame.scrollLeft);
  frame.toggleAttribute("data-more", left > 1);
}

/** The same for all that match in a place whose content comes and goes. Returns what is to be called when it has. */
export function fadeEdges(place, selector) {
  const all = () => place.querySelectorAll(selector).forEach(fadeEdge);
  const scrolled = ({ target }) => target.matches?.(selector) && fadeEdge(target);
  place.addEventListener("scroll", scrolled, { capture: true, passive: true });
  new ResizeObserver(all).observe(place);
  return all;
}
