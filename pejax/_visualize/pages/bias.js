const HEADS = [0, 1, 2, 3];
const biasOf = (table, head, query, key) => {
  if (table.offset) return table.offset[head][key[0] - query[0] + data.side - 1][key[1] - query[1] + data.side - 1];
  return table.rows[head][query[0]][key[0]] + table.columns[head][query[1]][key[1]];
};
const side = () => number("grid");
const query = () => [number("row"), number("column")];
const patches = () => Array.from({ length: side() ** 2 }, (_, i) => [Math.floor(i / side()), i % side()]);
const table = () => data.tables[chosen("encoding")];
const biases = (head) => patches().map((key) => biasOf(table(), head, query(), key));

// The smallest and the largest bias of an encoding on a grid, over all heads and queries: its colors stay as the query moves.
const known = {};
const ends = () => (known[`${chosen("encoding")} ${side()}`] ??= HEADS.flatMap((head) =>
  patches().flatMap((from) => patches().map((key) => biasOf(table(), head, from, key)))
).reduce(([low, high], one) => (one === null ? [low, high] : [Math.min(low, one), Math.max(high, one)]), [0, 0]));

const sheets = HEADS.map((head) => byId(`head${head}`));

const sheet = (values, top) => {
  const size = 210 / side();
  const boxes = patches().map(([row, column], i) => {
    const place = `x="${(column * size).toFixed(2)}" y="${(row * size).toFixed(2)}" width="${size - 1}" height="${size - 1}"`;
    if (values[i] === null) return `<rect class="unseen" ${place}/>`;
    const shade = Math.sqrt(Math.abs(values[i]) / top).toFixed(3);
    return `<rect class="${values[i] < 0 ? "below" : "above"}" fill-opacity="${shade}" ${place}/>`;
  });
  const [row, column] = query();
  return `${boxes.join("")}<rect class="query" x="${column * size}" y="${row * size}" width="${size - 1}" height="${size - 1}"/>`;
};

const legend = (low, high, top) => {
  const x = high > 0 ? scale(-1, 1, 30, 330) : scale(-1, 0, 105, 255);
  const boxes = Array.from({ length: 60 }, (_, i) => (i - 29.5) / 30).filter((at) => at < 0 || high > 0).map((at) =>
    `<rect class="${at < 0 ? "below" : "above"}" fill-opacity="${Math.abs(at).toFixed(3)}" x="${x(at) - 2.5}" y="8" width="5" height="18"/>`);
  const ticks = [-1, -0.25, 0, 0.25, 1].filter((tick) => tick <= 0 || high > 0);
  return boxes.join("") + ticks.map((tick) => text(x(Math.sign(tick) * Math.sqrt(Math.abs(tick))), 44, short(tick * top))).join("");
};

// What is drawn, for tests.
window.shown = () => HEADS.map(biases);

const draw = () => {
  const last = side() - 1;
  ["row", "column"].forEach((name) => { byId(name).max = last; tell(name, chosen(name)); });
  const all = HEADS.map(biases);
  const [low, high] = ends();
  const top = Math.max(-low, high);
  HEADS.forEach((head) => { sheets[head].innerHTML = sheet(all[head], top); });
  byId("scale").innerHTML = legend(low, high, top);
  const hidden = all[0].includes(null) ? " Gray patches are hidden from the head." : "";
  say(`Query at row ${query()[0]}, column ${query()[1]}. Biases on this grid are from ${short(low)} to ${short(high)}.${hidden}`);
};

sheets.forEach((svg, head) => {
  svg.classList.add("grids");
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const edge = Math.min(box.width, box.height);
    const place = (from, start, room) => Math.floor((from - start - (room - edge) / 2) / edge * side());
    const found = [place(event.clientY, box.top, box.height), place(event.clientX, box.left, box.width)];
    return found.every((one) => one >= 0 && one < side()) ? found : null;
  };
  const move = (event) => {
    const found = at(event);
    if (!found) return;
    if (event.buttons) {
      set("row", found[0]);
      set("column", found[1]);
      draw();
    } else {
      const bias = biasOf(table(), head, query(), found);
      say(`Head ${head}, key at row ${found[0]}, column ${found[1]}: ${bias === null ? "hidden" : short(bias)}.`);
    }
  };
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointermove", move);
});

byId("panels").classList.add("small");
byId("scale").parentElement.classList.add("key");
follow(draw);
