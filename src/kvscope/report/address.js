"use strict";
// The page's address holds the state of its controls: #part?key=value&key=value

const state = new URLSearchParams(location.hash.split("?")[1] ?? "");

function part() {
  return location.hash.slice(1).split("?")[0];
}

function writeAddress() {
  const query = state.toString();
  history.replaceState(null, "", `#${part()}${query ? `?${query}` : ""}`);
}

function remember(key, value) {
  if (value) state.set(key, value);
  else state.delete(key);
  writeAddress();
}

// A link to a part of the page replaces the whole fragment: add the state again.
addEventListener("hashchange", () => {
  if (!location.hash.includes("?") && state.size) writeAddress();
});
