"use strict";

// Boxes that scroll get a tab stop and a class while there is something to scroll to. The theme puts each copy button into
// a nav without a name: it is no landmark.
const SCROLLED = ".md-typeset__scrollwrap, .md-typeset pre > code, .formula, .picture";
const scrolled = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  const wider = target.scrollWidth > target.clientWidth;
  target.classList.toggle("scrolled", wider);
  if (wider) target.tabIndex = 0;
  else target.removeAttribute("tabindex");
}));
const mend = () => {
  document.querySelectorAll("nav.md-code__nav").forEach((nav) => nav.setAttribute("role", "none"));
  document.querySelectorAll(SCROLLED).forEach((box) => scrolled.observe(box));
};
// On a touch screen the theme takes the tab stop of code away again.
const changed = ({ type, target }) => {
  if (type !== "attributes") mend();
  else if (target.classList.contains("scrolled") && !target.hasAttribute("tabindex")) target.tabIndex = 0;
};
const watched = { childList: true, subtree: true, attributeFilter: ["tabindex"] };
new MutationObserver((changes) => changes.forEach(changed)).observe(document.querySelector(".md-content"), watched);
mend();
