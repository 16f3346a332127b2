// The list of conversations on a narrow screen, where it lies over the page: a button opens it; a button, Escape and a tap beside it close it.
import { byId } from "./dom.js";

const narrow = matchMedia("(max-width: 46rem)");
const isOpen = () => document.body.classList.contains("menu");

function show(open) {
  document.body.classList.toggle("menu", open);
  byId("menu").setAttribute("aria-expanded", open);
  byId("page").inert = open; // neither Tab nor a screen reader leaves the list
}

export function openDrawer(focus = "close-menu") {
  if (narrow.matches) show(true);
  byId(focus).focus();
}

// Gives whether it was open.
export function closeDrawer() {
  const was = isOpen();
  show(false);
  if (was && byId("menu").checkVisibility()) byId("menu").focus();
  return was;
}

byId("menu").addEventListener("click", () => openDrawer());
byId("close-menu").addEventListener("click", closeDrawer);
byId("shade").addEventListener("click", closeDrawer);
narrow.addEventListener("change", closeDrawer);
