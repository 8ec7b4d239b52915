const frequenciesOf = (width, base) => Array.from({ length: width / 2 }, (_, i) => base ** (-2 * i / width));
const embedding = (position, frequencies) => frequencies.flatMap((f) => [Math.sin(position * f), Math.cos(position * f)]);
const similarity = (distance, frequencies) =>
  frequencies.reduce((sum, f) => sum + Math.cos(distance * f), 0) / frequencies.length;
const base = () => Number((10 ** number("base")).toPrecision(3));

const last = data.length - 1;
const along = across(0, last);
const steps = Array.from({ length: 4 * last + 1 }, (_, i) => i / 4);

const waves = (position, frequencies) => {
  const count = frequencies.length;
  const pairs = [...new Set([0, 1, 2, 3].map((i) => Math.floor(i * count / 4)))];
  return line([[along(position), 8], [along(position), 196]], "mark") + pairs.map((pair, i) => {
    const y = scale(-1, 1, 48 + 45 * i, 14 + 45 * i);
    const wave = (at) => y(Math.sin(at * frequencies[pair]));
    return line(steps.map((at) => [along(at), wave(at)]), "line0") + text(44, y(0) + 4, 2 * pair, "end")
      + `<circle class="dot" r="4" cx="${along(position)}" cy="${wave(position)}"/>`;
  }).join("") + [0, 32, 64, 96].map((at) => text(along(at), 210, at)).join("") + text(199, 226, "position, tokens")
    + '<text transform="translate(11 98) rotate(-90)" text-anchor="middle">channel</text>';
};

const bars = (vector) => {
  const x = across(-0.5, vector.length - 0.5);
  const y = upward(-1, 1);
  const thick = 0.8 * (x(1) - x(0));
  const ticks = [0, Math.floor(vector.length / 2), vector.length - 1];
  return axes(x, y, [...new Set(ticks)], [-1, 0, 1], "channel", "value") + vector.map((value, i) =>
    `<rect class="bar${i % 2}" x="${x(i) - thick / 2}" width="${thick}" y="${y(Math.max(value, 0))}" height="${Math.abs(y(0) - y(value))}"/>`
  ).join("");
};

const similarities = (position, frequencies) => {
  const y = upward(-1, 1);
  const all = Array.from({ length: data.length }, (_, at) => similarity(at - position, frequencies));
  return axes(along, y, [0, 32, 64, 96], [-1, 0, 1], "position, tokens", "cosine")
    + line([[along(position), BOX.top], [along(position), BOX.bottom]], "mark")
    + line(all.map((value, at) => [along(at), y(value)]), "line0");
};

// What is drawn, for tests.
window.shown = () => {
  const frequencies = frequenciesOf(number("width"), base());
  const all = Array.from({ length: data.length }, (_, at) => similarity(at - number("position"), frequencies));
  return { base: base(), vector: embedding(number("position"), frequencies), similarity: all };
};

follow(() => {
  const position = number("position");
  const frequencies = frequenciesOf(number("width"), base());
  tell("position", chosen("position"));
  tell("width", chosen("width"));
  tell("base", short(base()));
  byId("waves").innerHTML = waves(position, frequencies);
  byId("vector").innerHTML = bars(embedding(position, frequencies));
  byId("similarity").innerHTML = similarities(position, frequencies);
  const slowest = 2 * Math.PI / frequencies.at(-1);
  const next = similarity(1, frequencies);
  say(`Wavelengths from ${short(2 * Math.PI)} to ${short(slowest)} tokens. Neighbors have a cosine of ${short(next)}.`);
});
