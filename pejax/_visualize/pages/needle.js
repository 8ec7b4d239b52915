const frequenciesOf = (base, method, factor) => {
  const found = data.frequencies[base][method];
  return method === "none" ? found : found[factor];
};
const now = () => frequenciesOf(chosen("base"), chosen("method"), chosen("factor"));
const position = () => data.positions[number("position")];
const plain = () => frequenciesOf(chosen("base"), "none");

const hand = (angle, kind) => line([[180, 115], [180 + 95 * Math.cos(angle), 115 - 95 * Math.sin(angle)]], kind);
const dial = (at, frequency, before) => {
  const trail = Array.from({ length: Math.min(at, 12) }, (_, i) => hand((at - i - 1) * frequency, "trail"));
  const old = before === frequency ? "" : hand(at * before, "line2");
  const tip = [180 + 95 * Math.cos(at * frequency), 115 - 95 * Math.sin(at * frequency)];
  return `<circle class="frame" cx="180" cy="115" r="95"/>${line([[85, 115], [275, 115]], "grid")}${line([[180, 20], [180, 210]], "grid")}`
    + trail.join("") + old + hand(at * frequency, "line0") + `<circle class="dot" r="5" cx="${tip[0]}" cy="${tip[1]}"/>`
    + text(290, 119, "position 0", "start");
};

const wavelengths = (pair, extended, before, factor) => {
  const x = across(0, before.length - 1);
  const y = upward(4, 4e7, true);
  const wave = (frequencies) => frequencies.map((f, i) => [x(i), y(2 * Math.PI / f)]);
  const level = (length, said) => line([[BOX.left, y(length)], [BOX.right, y(length)]], "mark")
    + text(BOX.left + 4, y(length) - 4, said, "start");
  return axes(x, y, [0, 8, 16, 24, 31], [10, 1e3, 1e5, 1e7], "pair", "tokens")
    + level(data.trained, "trained length")
    + (factor > 1 ? level(data.trained * factor, `${factor} times as long`) : "")
    + (extended === before ? "" : line(wave(before), "line2")) + line(wave(extended), "line0")
    + `<circle class="dot" r="5" cx="${x(pair)}" cy="${y(2 * Math.PI / extended[pair])}"/>`;
};

// What is drawn, for tests.
window.shown = () => ({ frequencies: now(), position: position(), angle: position() * now()[number("pair")] });

follow(() => {
  const pair = number("pair");
  const factor = chosen("method") === "none" ? 1 : number("factor");
  const [extended, before] = [now(), plain()];
  const turns = (length) => short(length * extended[pair] / (2 * Math.PI));
  byId("factor").disabled = factor === 1;
  tell("position", whole(position()));
  tell("pair", String(pair));
  byId("dial").innerHTML = dial(position(), extended[pair], before[pair]);
  byId("wavelengths").innerHTML = wavelengths(pair, extended, before, factor);
  const slowed = before[pair] / extended[pair];
  say(`Pair ${pair}: a turn takes ${short(2 * Math.PI / extended[pair])} tokens; ${turns(position())} turns at this position, `
    + `${turns(data.trained)} in ${whole(data.trained)} tokens. `
    + (factor > 1 ? `The extension slows it down by ${short(slowed)} (dotted: without).` : ""));
});
