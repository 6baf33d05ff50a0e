// Colours of numbers and of classes. media/colours.py has the same for images that the server makes.

const GOLDEN = 0.618033988749895;
// Of the first classes, as unlike each other as they can be; the rest goes around the wheel of hues.
const FIRST = [[230, 70, 60], [70, 130, 230], [245, 200, 50], [60, 180, 90], [190, 90, 220], [250, 150, 50], [70, 210, 220], [240, 130, 190], [160, 120, 80], [160, 220, 70], [100, 90, 200], [200, 200, 200]];
const STOPS = {
  // Each lighter than the one before, so that it also reads in grey.
  sea: [[20, 14, 46], [44, 40, 110], [32, 92, 140], [26, 142, 134], [96, 190, 98], [250, 226, 90]],
  grey: [[0, 0, 0], [255, 255, 255]],
  // Around a middle: below it blue, above it red.
  two: [[22, 60, 130], [120, 168, 214], [244, 243, 240], [226, 152, 118], [140, 28, 36]],
};

/** What people can choose from: name → what it says. */
export const MAPS = { sea: "dark to light", grey: "grey", two: "around zero", classes: "classes" };

/** 256 colours from low to high, as [red, green, blue]. */
export function ramp(name) {
  const stops = STOPS[name] ?? STOPS.sea;
  return Array.from({ length: 256 }, (_, at) => {
    const place = (at / 255) * (stops.length - 1), below = Math.min(Math.floor(place), stops.length - 2), part = place - below;
    return stops[below].map((from, channel) => Math.round(from + (stops[below + 1][channel] - from) * part));
  });
}

/** The colour of a class; 0, which mostly is the background, is black. */
export function ofClass(number) {
  if (number === 0) return [0, 0, 0];
  if (number > 0 && number <= FIRST.length) return FIRST[number - 1];
  const hue = ((((number * GOLDEN) % 1) + 1) % 1) * 6;
  const [light, dark] = [[235, 60], [200, 20], [255, 130]][((number % 3) + 3) % 3];
  const part = Math.trunc(light - Math.abs((hue % 2) - 1) * (light - dark));
  return [[light, part, dark], [part, light, dark], [dark, light, part], [dark, part, light], [part, dark, light], [light, dark, part]][Math.floor(hue) % 6];
}

/** The colour of a label, a number or a text, that is drawn as a line: never black. */
export function ofLabel(label) {
  if (Number.isInteger(label)) return css(ofClass(label + 1));
  let sum = 7;
  for (const letter of String(label ?? "")) sum = (sum * 31 + letter.codePointAt(0)) % 65_521;
  return css(ofClass(sum + 1));
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
