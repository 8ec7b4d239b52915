"use strict";
(() => {
  const all = (query) => [...document.querySelectorAll(query)];
  const say = (text) => { document.getElementById("said").textContent = text; };
  all("button:disabled").forEach((button) => { button.disabled = false; });

  const theme = (chosen) => {
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    all(".theme").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.theme === chosen)));
  };
  const memory = (action) => { try { return action(window.localStorage); } catch { return null; } };
  all(".theme").forEach((button) => button.addEventListener("click", () => {
    theme(button.dataset.theme);
    memory((store) => store.setItem("pejax-report-theme", button.dataset.theme));
    say(`colors: ${button.textContent}`);
  }));
  const kept = memory((store) => store.getItem("pejax-report-theme"));
  if (kept === "light" || kept === "dark") theme(kept);

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    opened.forEach((one) => { one.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));

  const ofScope = (scope) => all("[data-series]").filter((element) => element.dataset.scope === scope);
  const show = (elements, visible) => elements.forEach((element) => {
    if (element.matches(".toggle")) element.setAttribute("aria-pressed", String(visible));
    else element.classList.toggle("off", !visible);
  });
  all(".toggle").forEach((button) => button.addEventListener("click", () => {
    const visible = button.getAttribute("aria-pressed") !== "true";
    show(ofScope(button.dataset.scope).filter((e) => e.dataset.series === button.dataset.series), visible);
    say(`${button.textContent.trim()} ${visible ? "shown" : "hidden"}`);
  }));
  all(".every, .none").forEach((button) => button.addEventListener("click", () => {
    const visible = button.matches(".every");
    show(ofScope(button.dataset.scope), visible);
    say(visible ? "all curves shown" : "all curves hidden");
  }));

  const keyOf = (row, column) => {
    const cell = row.cells[column];
    return "key" in cell.dataset ? cell.dataset.key : cell.textContent.trim();
  };
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };
  all(".sort").forEach((button) => button.addEventListener("click", () => {
    const head = button.closest("th");
    const table = head.closest("table");
    const body = table.tBodies[0];
    const ascending = head.getAttribute("aria-sort") === "descending" || head.getAttribute("aria-sort") === "none";
    const sign = ascending ? 1 : -1;
    const rows = [...body.rows].sort((one, other) => {
      const [a, b] = [keyOf(one, head.cellIndex), keyOf(other, head.cellIndex)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return sign * compare(a, b);
    });
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((cell) => cell.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    say(`sorted by ${button.textContent.trim()}, ${ascending ? "ascending" : "descending"}`);
  }));
})();
