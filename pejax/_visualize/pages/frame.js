"use strict";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const root = document.documentElement;

// In a frame of the docs site or of a notebook: take the palette of the site, and give the frame the height of the page.
if (window.frameElement) {
  const frame = window.frameElement;
  const site = frame.ownerDocument.body;
  const recolor = () => {
    const scheme = site.dataset.mdColorScheme;
    if (scheme) root.dataset.theme = scheme === "slate" ? "dark" : "light";
  };
  recolor();
  new MutationObserver(recolor).observe(site, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  new ResizeObserver(() => { frame.style.height = `${document.body.offsetHeight + 2}px`; }).observe(document.body);
}

const chosen = (id) => byId(id).value;
const number = (id) => Number(byId(id).value);
const set = (id, value) => { byId(id).value = value; };
const say = (text) => { byId("said").textContent = text; };
const tell = (id, text) => {
  byId(`${id}-shown`).textContent = text;
  byId(id).setAttribute("aria-valuetext", text);
};
const whole = (x) => Math.round(x).toLocaleString("en");
const short = (x) => (Math.abs(x) >= 1000 ? whole(x) : String(Number(x.toPrecision(3)))).replace("-", "−");
const compact = (x) => x.toLocaleString("en", { notation: "compact" }).replace("-", "−");

// Draw now and after every change of a control.
const follow = (draw) => {
  byId("missing").remove();
  document.querySelector("fieldset").disabled = false;
  document.querySelectorAll("figure[hidden]").forEach((figure) => { figure.hidden = false; });
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("input", draw);
  document.querySelectorAll("button[data-of]").forEach((button) => button.addEventListener("click", () => {
    const of = byId(button.dataset.of);
    if (button.dataset.way === "up") of.stepUp(); else of.stepDown();
    draw();
  }));
  draw();
};

// Markup of a chart of 360 x 230.
const BOX = { left: 48, right: 350, top: 10, bottom: 190 };
const scale = (low, high, from, to, log = false) => {
  const place = log ? Math.log : (one) => one;
  return (one) => from + (to - from) * (place(one) - place(low)) / (place(high) - place(low));
};
const across = (low, high, log) => scale(low, high, BOX.left, BOX.right, log);
const upward = (low, high, log) => scale(low, high, BOX.bottom, BOX.top, log);
const line = (points, kind) =>
  `<path class="${kind}" d="M${points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}"/>`;
const text = (x, y, said, anchor = "middle") => `<text x="${x}" y="${y}" text-anchor="${anchor}">${said}</text>`;
const axes = (x, y, xTicks, yTicks, xLabel, yLabel) => [
  ...xTicks.map((tick) => line([[x(tick), BOX.top], [x(tick), BOX.bottom]], "grid") + text(x(tick), 204, compact(tick))),
  ...yTicks.map((tick) => line([[BOX.left, y(tick)], [BOX.right, y(tick)]], "grid") + text(44, y(tick) + 4, compact(tick), "end")),
  text((BOX.left + BOX.right) / 2, 222, xLabel),
  `<text transform="translate(11 ${(BOX.top + BOX.bottom) / 2}) rotate(-90)" text-anchor="middle">${yLabel}</text>`,
].join("");
