"use strict";
// The tokens of the requests of the experiment that the section of requests shows, by their causes.

const accounts = document.getElementById("tokens");

function account({ heading, rows }) {
  const cells = rows.map(([share, tokens, sentence]) => made("tr", [made("td", share, { className: "number" }), made("td", tokens, { className: "number" }), made("td", sentence)]));
  return [made("p", heading), made("table", made("tbody", cells), { className: "life" })];
}

async function showTokens() {
  const runs = JSON.parse(await unpack(accounts));
  await livesShown; // it fills the list of experiments
  const select = lives.querySelector("select");
  const show = () => {
    const run = runs.find(({ id }) => id === select.value);
    const requests = run ? run.requests.flatMap((one) => [made("h4", `request ${one.id}`), ...account(one)]) : [];
    const each = made("details", [made("summary", "The tokens of each of these requests"), ...requests]);
    lives.querySelector(".tokens").replaceChildren(...(run ? [made("h3", "Where tokens came from"), ...account(run), made("ul", run.remedies.map((words) => made("li", words)), { className: "findings" }), each] : []));
  };
  select.addEventListener("change", show);
  show();
}

if (accounts) showTokens();
