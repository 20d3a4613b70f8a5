"use strict";
// What is chosen on the page stands in its address: #part?key=value&key=value

const state = new URLSearchParams(location.hash.split("?")[1] ?? "");

function part() {
  return location.hash.slice(1).split("?")[0];
}

function writeAddress() {
  const chosen = state.toString();
  history.replaceState(null, "", `#${part()}${chosen ? `?${chosen}` : ""}`);
}

function remember(key, value) {
  if (value) state.set(key, value);
  else state.delete(key);
  writeAddress();
}

// A link to a part of the page has the part alone.
addEventListener("hashchange", () => {
  if (!location.hash.includes("?") && state.size) writeAddress();
});
