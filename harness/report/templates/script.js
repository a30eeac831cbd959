// The script adds to a page: values of plots under the pointer, zooming, a filter for cards, and buttons that copy
// commands. The script also creates the elements for these, so that a page on which no script runs has no dead controls.
// Texts from evidence are inserted as text, never as HTML.
'use strict';
(() => {
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const make = (tag, set, ...inside) => {
  const made = Object.assign(document.createElement(tag), set);
  made.append(...inside);
  return made;
};
const button = (textContent, onclick) => make('button', {type: 'button', textContent, onclick});

// --- filter the cards, and the rows that link to a card, by verdict, claim and words
const entries = all('[data-verdict]');
const heading = document.getElementById('claims');
if (heading && entries[1]) {
  const cards = entries.filter(entry => entry.matches('article'));
  const keys = ['verdict', 'claim'];
  const selects = keys.map(key => make('select', {}, ...['', ...new Set(entries.map(entry => entry.dataset[key]))]
    .map(value => new Option(value || 'all', value))));
  const search = make('input', {type: 'search'});
  const shown = make('output');
  const filter = () => {
    const words = search.value.trim().toLowerCase();
    for (const entry of entries) {
      const link = !entry.matches('article') && entry.querySelector('a[href^="#"]');
      const card = link && document.getElementById(link.hash.slice(1));
      const text = entry.textContent + (card ? card.closest('article').textContent : '');
      entry.hidden = !text.toLowerCase().includes(words)
        || selects.some((select, at) => select.value && select.value !== entry.dataset[keys[at]]);
    }
    const left = cards.filter(card => !card.hidden);
    const some = left.length < cards.length;
    shown.textContent = some ? `${left.length} of ${cards.length} cards` : '';
    if (some) left.forEach(card => card.closest('details')?.setAttribute('open', ''));
  };
  const reset = () => {
    [...selects, search].forEach(input => { input.value = ''; });
    filter();
  };
  heading.after(make('div', {className: 'tool filter', role: 'search', oninput: filter},
    make('label', {}, 'Verdict ', selects[0]), make('label', {}, 'Claim ', selects[1]), make('label', {}, 'Words ', search),
    button('Show all', reset), shown));
  addEventListener('hashchange', () => {
    if (document.getElementById(location.hash.slice(1))?.closest('[hidden]')) reset();
  });
}

// --- open the folded elements around the target of a link
const unfold = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (!target) return;
  const inside = target.matches('.card') ? target.querySelector('details') : null;
  for (let each = inside ?? target; each; each = each.parentElement) if (each.matches('details')) each.open = true;
  target.scrollIntoView();
};
addEventListener('hashchange', unfold);
if (location.hash) unfold();

// --- add a button that copies the command that repeats the run
for (const text of all('[data-copy]')) {
  const done = make('output');
  const copy = () => {
    getSelection().selectAllChildren(text);
    done.textContent = document.execCommand('copy') ? 'Copied.' : 'Selected, to be copied by hand.';
  };
  text.before(make('p', {className: 'tool'}, button('Copy the command', copy), ' ', done));
}

// --- plots: the values are computed from the coordinates of the drawn paths, in units of the image
// Split a path into pieces. A piece has its points, their middle, and an `end`, which is empty unless it is a mark.
const pieces = path => path.match(/M[^M]+/g).map(piece => {
  const [x, y, ...steps] = piece.match(/-?\d+/g).map(Number);
  const points = [[x, y]];
  for (let at = 1; at < steps.length; at += 2) points.push([points.at(-1)[0] + steps[at - 1], points.at(-1)[1] + steps[at]]);
  const end = piece.match(/z|h0|$/)[0];
  const middle = [0, 1].map(axis => points.map(point => point[axis])).map(ends => (Math.min(...ends) + Math.max(...ends)) / 2);
  return {points, end, middle};
});
const decimals = step => Math.min(12, Math.max(0, Math.ceil(-Math.log10(step))));

for (const plot of all('svg.plot')) {
  const axes = all('rect[data-x]', plot).map(({dataset, attributes, parentNode}) => ({
    ...dataset,
    clip: `url(#${parentNode.id})`,
    box: ['x', 'y', 'width', 'height'].map(name => +attributes[name].value),
    xs: dataset.x.split(' ').map(Number),
    ys: dataset.y.split(' ').map(Number),
  }));
  if (!axes[0]) continue;
  const {box: [left, lowest, width, height], xs, k: kind, l: label} = axes.at(-1);
  const whole = kind === 'whole' || kind === 'named';
  const step = (xs[1] - xs[0]) / width;
  const near = whole ? Math.max(10, 0.5 / step) : 10;
  const drawn = all('[clip-path]', plot).flatMap(marked => (marked.matches('g') ? [...marked.children] : [marked]).map(leaf => {
    const path = leaf.matches('use') ? document.querySelector(leaf.getAttribute('href')) : leaf;
    const around = axes.find(({clip}) => clip === marked.getAttribute('clip-path'));
    return {leaf, around, name: marked.dataset.s, parts: pieces(path.getAttribute('d'))};
  }));
  const known = drawn.filter(({name}) => name).flatMap(({parts}) => parts.flatMap(({points}) => points.map(([x]) => x)));
  if (!known[0]) continue;
  const [first, last] = [Math.min(...known), Math.max(...known)];
  const ticks = all('text[data-t], [data-t] text', plot).map(text => ({text, at: +text.getAttribute('x')}));
  const cursor = document.createElementNS(plot.namespaceURI, 'path');
  cursor.setAttribute('class', 'cursor');
  plot.append(cursor);
  let [from, to] = [left, left + width];

  const valueAt = x => xs[0] + (x - left) * step;
  const written = x => whole ? Math.round(valueAt(x)) + 0 : valueAt(x).toFixed(decimals(step));
  const snapped = x => {
    const within = Math.min(Math.max(x, first), last);
    return whole ? left + (Math.round(valueAt(within)) - xs[0]) / step : within;
  };
  const zoomed = x => Math.round(left + (x - from) / (to - from) * width);
  // Return the height of a line at x, or of a mark near x.
  const heightAt = (parts, x) => {
    for (const {points, end} of parts) {
      const next = end ? 0 : points.findIndex(([right], at) => at && points[at - 1][0] <= x && x <= right && points[at - 1][0] < right);
      if (next > 0) {
        const [[x0, y0], [x1, y1]] = [points[next - 1], points[next]];
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
      }
    }
    const marks = parts.map(part => part.middle).filter(([at]) => Math.abs(at - x) <= near);
    return marks.sort(([a], [b]) => Math.abs(a - x) - Math.abs(b - x))[0]?.[1];
  };
  const reading = ({k, z, ys: [low, high], box: [, top,, tall]}, y) => {
    const value = low + (top + tall - y) / tall * (high - low);
    if (k === 'events') return '';
    if (!z) return ' ' + value.toFixed(decimals((high - low) / tall));
    return value < +z + 0.1 ? ' 0' : ' ' + Number((10 ** value).toPrecision(2));
  };
  const values = x => {
    const found = {};
    for (const {name, around, parts} of drawn) {
      const y = name && heightAt(parts, x);
      if (y >= 0) found[name] ??= name + reading(around, y);
    }
    const tick = kind === 'named' && ticks.find(({at}) => Math.abs(at - x) < near);
    return `${label} ${tick ? tick.text.textContent : written(x)}: ${Object.values(found).join(' · ')}`;
  };

  const output = make('output');
  const slider = make('input', {type: 'range', ariaLabel: `Place in the plot: ${label}`, oninput: () => point(+slider.value)});
  const mark = (a, b) => cursor.setAttribute('d', `M${zoomed(a)} ${axes[0].box[1]}H${zoomed(b)}V${lowest + height}H${zoomed(a)}z`);
  const point = x => {
    slider.value = x;
    slider.ariaValueText = output.textContent = values(snapped(x));
    mark(snapped(x), snapped(x));
  };
  const show = (start, end) => {
    if (end - start < (whole ? 2 / step : width / 100)) return;
    [from, to] = [Math.max(start, left), Math.min(end, left + width)];
    for (const each of drawn) {
      if (each.leaf.matches('use')) {
        const path = document.createElementNS(plot.namespaceURI, 'path');
        for (const {name, value} of each.leaf.attributes) path.setAttribute(name, value);
        each.leaf.replaceWith(path);
        each.leaf = path;
      }
      // Move a mark as a whole, so that zooming does not change its shape.
      const move = (x, middle) => each.name && middle ? Math.round(x + zoomed(middle) - middle) : zoomed(x);
      each.leaf.setAttribute('d', each.parts.map(({points, end, middle}) =>
        'M' + points.map(([x, y]) => move(x, end && middle[0]) + ' ' + y).join('L') + end).join(''));
    }
    for (const {text, at} of ticks) {
      text.setAttribute('x', zoomed(at));
      if (text.matches('[transform]')) text.setAttribute('transform', `rotate(-90 ${zoomed(at)} ${text.getAttribute('y')})`);
      text.setAttribute('visibility', at < from - 1 || at > to + 1 ? 'hidden' : 'visible');
    }
    range();
    cursor.setAttribute('d', '');
    output.textContent = to - from < width ? `Shown: ${label} ${written(snapped(from))} to ${written(snapped(to))}` : '';
  };
  const range = () => Object.assign(slider, {min: snapped(from), max: snapped(to), step: whole ? 1 / step : width / 200});
  const closer = () => {
    const quarter = (to - from) / 4;
    const middle = Math.min(Math.max(+slider.value, from + quarter), to - quarter);
    show(middle - quarter, middle + quarter);
  };
  const reset = () => show(left, left + width);
  const under = ({clientX}) => {
    const seen = plot.getBoundingClientRect();
    const x = (clientX - seen.left) / seen.width * plot.viewBox.baseVal.width;
    return from + Math.min(Math.max((x - left) / width, 0), 1) * (to - from);
  };
  let pressed;
  plot.onpointerdown = event => { pressed = under(event); };
  plot.onpointermove = event => event.buttons && pressed !== undefined ? mark(pressed, under(event)) : point(under(event));
  plot.onpointerup = event => {
    if (pressed !== undefined) show(...[pressed, under(event)].sort((a, b) => a - b));
    pressed = undefined;
  };
  plot.ondblclick = reset;
  range();
  plot.after(make('p', {className: 'tool'}, output), make('details', {className: 'tool'}, make('summary', {}, 'Values and zoom'), slider,
    button('Zoom in', closer), button('Whole range', reset)));
}
})();
