"use strict";
// Figures as charts.py and marks.py draw them, of the methods that are shown; and what other scripts share.
const opasd = (() => {
  const COLOURS = 8, SHAPES = 4, WIDTH = 560, PLOT = 236, TOP = 24, BOTTOM = 46, ROW = 30, LEGEND = 20, TITLE = 36;
  const CHARACTER = 7.3, LONGEST = 34, ROOMY = 420, LABELROW = 15, MANY = 1200;
  const data = (id) => { const node = document.getElementById(id); return node ? JSON.parse(node.textContent) : null; };
  const make = (tag, options = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), options);
    node.append(...children);
    return node;
  };
  const svgNode = (tag, attributes = {}) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const save = (name, blob) => {
    const link = make("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const saveText = (name, text, type) => save(name, new Blob([text], { type: type + ";charset=utf-8" }));
  const savePng = (name, text, width, height, scale) => {
    const image = new Image();
    image.onload = () => {
      const canvas = make("canvas", { width: width * scale, height: height * scale });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(name, blob), "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  };
  // The style in the page's present colours, without variables: for a picture that leaves the page.
  const resolved = (rules) => {
    const style = getComputedStyle(document.documentElement);
    return rules.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  };
  const round = (slot) => Math.min(Math.floor(slot / COLOURS), SHAPES - 1);
  const dot = (slot) => make("i", { className: `dot c${slot % COLOURS}` + (slot < COLOURS ? "" : ` g${round(slot)}`) });

  // ---- numbers -----------------------------------------------------------------------------------------------------
  const minus = (text) => text.replace("-", "−");
  const fixed = (value, digits, sign = false) => {
    const text = minus(value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
    return (sign && !/^[−]|^0(\.0*)?$/.test(text) ? "+" : "") + text.replace(/^−(0(\.0*)?)$/, "$1");
  };
  const UNITS = [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "K"]];
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value), found = UNITS.find(([limit]) => size >= limit * (1 - 5e-4) && size < 1e15);
    const three = (one) => String(+one.toPrecision(3));
    if (found) return minus(three(value / found[1]) + found[2]);
    return minus(size < 1e3 || size >= 1e15 ? three(value) : value.toFixed(0));
  };
  const labels = (values, percent) => {
    const largest = Math.max(0, ...values.map(Math.abs));
    if (!percent && !(largest >= 1e-3 && largest < 1e15)) return values.map(short);
    let [, scale, unit] = UNITS.find(([limit]) => largest >= limit) || [0, 1, ""];
    if (percent) { scale = 0.01; unit = " %"; }
    const scaled = values.map((value) => value / scale);
    const gaps = scaled.slice(1).map((value, at) => Math.abs(value - scaled[at]));
    const fine = 1e-4 * (gaps.length ? Math.min(...gaps) : largest / scale);
    let digits = 0;
    while (digits < 7 && !scaled.every((value) => Math.abs(value - +value.toFixed(digits)) <= fine)) digits += 1;
    return scaled.map((value) => value ? fixed(value, digits) + unit : "0" + (percent ? unit : ""));
  };
  const ticks = (low, high, count = 5, whole = false) => {
    const span = high - low;
    if (!Number.isFinite(span) || span <= 0) return [low];
    let step = 10 ** Math.floor(Math.log10(span / count));
    step *= (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).find((factor) => span / (step * factor) <= count + 0.5);
    if (whole) step = Math.max(step, 1);
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9), found = [];
    for (let at = first; at <= last; at += 1) found.push(at === 0 ? 0 : at * step);
    return found;
  };
  const shortened = (text, limit) => {
    const letters = [...text];
    if (letters.length <= limit) return text;
    const head = Math.floor((limit - 1) * 2 / 3);
    return letters.slice(0, head).join("") + "…" + letters.slice(letters.length - (limit - 1 - head)).join("");
  };
  const sharedWords = (texts) => {
    if (texts.length < 2) return 0;
    const sorted = [...texts].sort(), first = sorted[0], last = sorted.at(-1);
    let shared = 0;
    while (shared < first.length && first[shared] === last[shared]) shared += 1;
    const start = texts[0].slice(0, shared);
    return Math.max(...["-", "_", "/", " "].map((one) => start.lastIndexOf(one))) + 1;
  };
  const withoutSharedStart = (names) => {
    const cut = sharedWords(names);
    return names.some((name) => name.length === cut) ? names : names.map((name) => name.slice(cut));
  };
  const shortNames = (names, limit) => {
    const isLong = (name) => [...name].length > limit, backwards = (name) => [...name].reverse().join("");
    if (!names.some(isLong)) return names;
    const parts = withoutSharedStart(names), long = parts.filter(isLong), tried = [], apart = new Set(names).size;
    const start = sharedWords(long), shared = sharedWords(long.map(backwards)), end = long.some((part) => part.length <= start + shared) ? 0 : shared;
    for (const [left, right] of [[0, 0], [start, 0], [start, end]]) {
      const cuts = parts.map((part) => isLong(part) ? (left ? "…" : "") + part.slice(left, part.length - right) + (right ? "…" : "") : part);
      const texts = cuts.map((cut) => shortened(cut, limit));
      if (new Set(texts).size !== apart) continue;
      if (texts.every((one, at) => one === cuts[at])) return texts;
      tried.push(texts);
    }
    return tried.at(-1) || parts.map((part) => isLong(part) ? "…" + [...part].slice([...part].length - limit + 1).join("") : part);
  };

  // ---- the frame ---------------------------------------------------------------------------------------------------
  const one = (value) => value.toFixed(1);
  const text = (content) => content.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const isBold = (series) => series.p.length && !series.f;
  const isLabelled = (figure, width) => { const bold = figure.series.filter(isBold).length;
    return figure.kind === "line" && bold > 0 && bold <= COLOURS && width >= ROOMY; };
  const endNames = (figure, width) => shortNames(figure.series.filter(isBold).map((own) => own.n), Math.floor((width / 3 - 30) / CHARACTER));
  const rowNames = (figure, width) => shortNames(figure.cat, Math.floor((0.4 * width - 14) / CHARACTER));
  const padded = (low, high, share) => {
    const span = high - low;
    if (span > Math.abs(high) * 1e-9) return [low - span * share, high + span * share];
    const room = Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  };
  const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
  const valueRoom = (width) => width >= 440 ? 168 : 20;
  function frameOf(figure, top, width) {
    const { series, kind, cat } = figure, points = series.flatMap((own) => own.p);
    const xs = points.length ? points.map((point) => point[0]) : [0], ends = series.flatMap((own) => [...(own.lo || []), ...(own.hi || [])]);
    let ys = points.length ? points.map((point) => point[1]) : [0], frame;
    if (kind === "forest") {
      const all = [...xs, ...ends, 0], left = 14 + CHARACTER * Math.max(0, ...rowNames(figure, width).map((name) => [...name].length));
      frame = { width, left, right: width - valueRoom(width), top, bottom: top + ROW * cat.length,
        x: padded(least(all), most(all), 0.06), y: [cat.length - 0.5, -0.5] };
    } else {
      ys = [...ys, ...ends];
      const x = kind === "bar" ? [-0.5, Math.max(cat.length, 1) - 0.5] : padded(least(xs), most(xs), kind === "scatter" ? 0.12 : 0);
      let low = least(ys), high = most(ys);
      const fromZero = figure.zero || kind === "bar";
      if (fromZero) { low = Math.min(low, 0); high = Math.max(high, 0); }
      let [yLow, yHigh] = padded(low, high, kind === "scatter" ? 0.25 : 0.08);
      if (fromZero && low === 0) yLow = 0;
      if (kind === "bar" && high === 0 && low < 0) yHigh = 0;
      if (figure.pct && low >= 0 && high <= 1) { yLow = Math.max(yLow, 0); yHigh = Math.min(yHigh, 1); }
      const widest = Math.max(0, ...labels(ticks(yLow, yHigh), figure.pct).map((label) => label.length));
      const right = isLabelled(figure, width) ? 30 + CHARACTER * Math.max(0, ...endNames(figure, width).map((name) => [...name].length)) : 20;
      frame = { width, left: 16 + CHARACTER * widest, right: width - right, top, bottom: top + PLOT, x, y: [yLow, yHigh] };
    }
    frame.across = (value) => frame.left + (value - frame.x[0]) / (frame.x[1] - frame.x[0]) * (frame.right - frame.left);
    frame.down = (value) => frame.bottom - (value - frame.y[0]) / (frame.y[1] - frame.y[0]) * (frame.bottom - frame.top);
    return frame;
  }

  // ---- marks -------------------------------------------------------------------------------------------------------
  const mark = (slot, x, y, r) => {
    const colour = slot % COLOURS, d = ["", `M${one(x - r)} ${one(y - r)}h${one(2 * r)}v${one(2 * r)}h${one(-2 * r)}z`,
      `M${one(x)} ${one(y - 1.2 * r)}l${one(1.2 * r)} ${one(2.1 * r)}h${one(-2.4 * r)}z`,
      `M${one(x - r)} ${one(y - r)}l${one(2 * r)} ${one(2 * r)}m0 ${one(-2 * r)}l${one(-2 * r)} ${one(2 * r)}`][round(slot)];
    if (!d) return `<circle class="f${colour}" cx="${one(x)}" cy="${one(y)}" r="${one(r)}"/>`;
    return `<path class="${round(slot) === SHAPES - 1 ? `cross k${colour}` : `f${colour}`}" d="${d}"/>`;
  };
  const join = (points) => points.map(([x, y]) => `${one(x)},${one(y)}`).join(" ");
  const thinned = (points) => {
    if (points.length <= MANY) return points;
    const stretch = Math.ceil(2 * points.length / MANY), kept = [];
    for (let start = 0; start < points.length; start += stretch) {
      const part = points.slice(start, start + stretch), by = (better) => part.reduce((a, b) => better(b[1], a[1]) ? b : a);
      kept.push(...[...new Set([by((a, b) => a < b), by((a, b) => a > b)])].sort((a, b) => a[0] - b[0]));
    }
    return kept;
  };
  const faintFirst = (series) => [...series.filter((own) => own.f), ...series.filter((own) => !own.f)];
  function lines({ series }, frame) {
    const many = new Set(series.map((own) => own.r)).size > COLOURS;
    return faintFirst(series).filter((own) => !(many && own.f)).map((own) => {
      const colour = own.r % COLOURS, points = own.p.map(([x, y]) => [frame.across(x), frame.down(y)]);
      let inner = "";
      if (own.lo && !many) {
        const edge = (values) => points.map(([x], at) => [x, frame.down(values[at])]);
        inner += `<polygon class="band f${colour}" points="${join([...edge(own.lo), ...edge(own.hi).reverse()])}"/>`;
      }
      const dash = own.r >= COLOURS ? ` d${round(own.r)}` : "";
      inner += `<polyline class="curve k${colour}${dash}${own.f ? " faint" : ""}" points="${join(thinned(points))}"/>`;
      if (own.m && points.length <= 60) inner += points.map(([x, y]) => mark(own.r, x, y, 3.6)).join("");
      else if (many && points.length) inner += mark(own.r, ...points.at(-1), 3.6);
      return `<g class="run${own.r}">${inner}</g>`;
    }).join("");
  }
  function directLabels(figure, frame) {
    const bold = figure.series.filter(isBold), names = endNames(figure, frame.width), places = [];
    const ends = bold.map((own, at) => [frame.down(own.p.at(-1)[1]), at]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    for (const [y] of ends) places.push(places.length ? Math.max(y, places.at(-1) + LABELROW) : Math.max(y, frame.top + 4));
    for (let at = places.length - 1; at >= 0; at -= 1)
      places[at] = Math.min(places[at], at === places.length - 1 ? frame.bottom : places[at + 1] - LABELROW);
    return ends.map(([y, at], n) => {
      const own = bold[at], x = frame.across(own.p.at(-1)[0]);
      return `<g class="run${own.r}"><path class="lead k${own.r % COLOURS}" d="M${one(x + 3)} ${one(y)}L${one(frame.right + 10)} `
        + `${one(places[n])}"/>${mark(own.r, frame.right + 12, places[n], 3.6)}`
        + `<text class="name" x="${one(frame.right + 20)}" y="${one(places[n] + 4)}">${text(names[at])}</text></g>`;
    }).join("");
  }
  function bars(figure, frame) {
    const drawn = figure.series.filter((own) => own.p.length), group = (frame.right - frame.left) / Math.max(figure.cat.length, 1);
    const width = Math.min(group * 0.8 / Math.max(drawn.length, 1), 54);
    const texts = drawn.map((own) => own.p.map(([, y]) => figure.pct ? fixed(100 * y, 1) + " %" : short(y)));
    const fits = CHARACTER * Math.max(0, ...texts.flat().map((content) => content.length)) <= width + 8;
    const zero = frame.down(Math.min(Math.max(0, frame.y[0]), frame.y[1]));
    return drawn.map((own, number) => {
      const colour = own.r % COLOURS, hatch = own.r >= COLOURS ? ` h${round(own.r)}` : "";
      return `<g class="run${own.r}">` + own.p.map(([x, y], at) => {
        const left = frame.across(x) + (number - drawn.length / 2) * width, end = frame.down(y), middle = left + width / 2;
        let inner = `<rect class="f${colour}${hatch} k${colour}" x="${one(left + 1)}" y="${one(Math.min(end, zero))}" `
          + `width="${one(Math.max(width - 2, 1))}" height="${one(Math.max(Math.abs(end - zero), 0.6))}"/>`;
        if (own.lo) inner += `<line class="whisker" x1="${one(middle)}" y1="${one(frame.down(own.lo[at]))}" x2="${one(middle)}" y2="${one(frame.down(own.hi[at]))}"/>`;
        else if (fits) inner += `<text x="${one(middle)}" y="${one(y >= 0 ? end - 5 : end + 14)}" text-anchor="middle">${text(texts[number][at])}</text>`;
        return inner;
      }).join("") + "</g>";
    }).join("");
  }
  function bubbles({ series }, frame) {
    const largest = Math.max(0, ...series.flatMap((own) => own.s || []));
    return series.map((own) => `<g class="run${own.r}">` + own.p.map(([x, y], at) => {
      const size = own.s ? own.s[at] : largest, radius = largest > 0 && size > 0 ? 26 * Math.sqrt(size / largest) : 6;
      return `<circle class="bubble f${own.r % COLOURS} k${own.r % COLOURS}" cx="${one(frame.across(x))}" cy="${one(frame.down(y))}" `
        + `r="${one(Math.max(radius, 4))}"/>${mark(own.r, frame.across(x), frame.down(y), 3.2)}`;
    }).join("") + "</g>").join("");
  }
  function forest(figure, frame) {
    const zero = one(frame.across(0)), names = rowNames(figure, frame.width);
    return `<line class="zero" x1="${zero}" y1="${one(frame.top)}" x2="${zero}" y2="${one(frame.bottom)}"/>`
      + faintFirst(figure.series).map((own) => `<g class="run${own.r}">` + own.p.map(([x, y], at) => {
        const place = frame.across(x), row = frame.down(y), colour = own.r % COLOURS;
        if (own.f) return `<circle class="seed f${colour}" cx="${one(place)}" cy="${one(row + 9)}" r="2.4"/>`;
        const low = own.lo[at], high = own.hi[at];
        const words = fixed(x, 1, true) + (low === high ? "" : ` [${fixed(low, 1, true)}, ${fixed(high, 1, true)}]`);
        return `<text class="name" x="8" y="${one(row + 4)}">${text(names[y])}</text>`
          + `<line class="curve k${colour}" x1="${one(frame.across(low))}" y1="${one(row)}" x2="${one(frame.across(high))}" y2="${one(row)}"/>`
          + mark(own.r, place, row, 4.6) + (valueRoom(frame.width) > 100
            ? `<text class="name" x="${one(frame.right + 12)}" y="${one(row + 4)}">${text(words)}</text>` : "");
      }).join("") + "</g>").join("");
  }

  // ---- the whole picture -------------------------------------------------------------------------------------------
  function xMarks(figure, frame) {
    if (figure.cat.length && figure.kind === "bar") {
      const room = Math.floor((frame.right - frame.left) / Math.max(figure.cat.length, 1) / CHARACTER);
      return figure.cat.map((name, at) => [at, shortened(name, Math.max(room, 3))]);
    }
    if (figure.marks.length) {
      const kept = [];
      for (const value of figure.marks) {
        const label = value.toLocaleString("en", { maximumSignificantDigits: 15 });
        if (!kept.length || frame.across(value) - frame.across(kept.at(-1)[0]) > CHARACTER * (label.length + 1)) kept.push([value, label]);
      }
      return kept;
    }
    const whole = figure.kind !== "forest" && figure.series.every((own) => own.p.every(([x]) => Number.isInteger(x)));
    const marked = ticks(...frame.x, Math.max(2, Math.floor((frame.right - frame.left) / 56)), whole), texts = labels(marked, false);
    return marked.map((value, at) => [value, texts[at]]);
  }
  function axes(figure, frame) {
    const parts = [], right = one(frame.right), left = one(frame.left);
    if (figure.kind !== "forest") {
      const marked = ticks(...frame.y), texts = labels(marked, figure.pct);
      marked.forEach((value, at) => { const y = frame.down(value);
        parts.push(`<line class="grid" x1="${left}" y1="${one(y)}" x2="${right}" y2="${one(y)}"/>`,
          `<text x="${one(frame.left - 8)}" y="${one(y + 4)}" text-anchor="end">${text(texts[at])}</text>`); });
    }
    const base = figure.kind === "bar" && frame.y[0] < 0 && frame.y[1] > 0 ? frame.down(0) : frame.bottom;
    parts.push(`<line class="axis" x1="${left}" y1="${one(base)}" x2="${right}" y2="${one(base)}"/>`);
    for (const [place, label] of xMarks(figure, frame)) {
      const half = CHARACTER * [...label].length / 2, at = frame.across(place);
      const x = figure.kind === "bar" ? at : Math.min(Math.max(at, half), frame.right + 20 - half);
      parts.push(`<text x="${one(x)}" y="${one(frame.bottom + 18)}" text-anchor="middle">${text(label)}</text>`);
    }
    const label = figure.cat.length && figure.kind === "bar" ? "" : shortened(figure.xl, 70);
    parts.push(`<text x="${one((frame.left + frame.right) / 2)}" y="${one(frame.bottom + 38)}" text-anchor="middle">${text(label)}</text>`,
      `<text x="12" y="${one(frame.top - 12)}">${text(shortened(figure.yl, 60))}</text>`);
    return parts.join("");
  }
  function legend(figure, width) {
    if (isLabelled(figure, width) || figure.kind === "forest") return ["", 0];
    const seen = new Map(figure.series.filter(isBold).map((own) => [own.n + "\n" + own.r, own]));
    const owners = [...seen.values()], all = owners.map((own) => own.n);
    const texts = shortNames(all.length > COLOURS ? withoutSharedStart(all) : all, LONGEST);
    let x = 16, y = 14, out = "";
    owners.forEach((own, at) => {
      const wide = 26 + CHARACTER * [...texts[at]].length + 12;
      if (x > 16 && x + wide > width) { x = 16; y += LEGEND; }
      out += `<g class="run${own.r}">${mark(own.r, x + 8, y - 4, 5)}<text class="name" x="${one(x + 22)}" y="${one(y)}">${text(texts[at])}</text></g>`;
      x += wide;
    });
    return [out, out ? y + 14 : 0];
  }
  // The figure without the methods that are hidden; a forest closes its gaps.
  function visible(figure, hidden) {
    const series = figure.series.filter((own) => !hidden.has(own.r));
    if (figure.kind !== "forest" || series.length === figure.series.length) return { ...figure, series };
    const rows = [...new Set(series.flatMap((own) => own.p.map(([, y]) => y)))].sort((a, b) => a - b);
    return { ...figure, cat: rows.map((y) => figure.cat[y]),
      series: series.map((own) => ({ ...own, p: own.p.map(([x, y]) => [x, rows.indexOf(y)]) })) };
  }
  // The inside of the <svg>, its frame and its height; alone: with title, legend, style and background.
  function draw(figure, width = WIDTH, alone = false) {
    const [names, height] = alone ? legend(figure, width) : ["", 0];
    const frame = frameOf(figure, TOP + height + (alone ? TITLE : 0), width), total = Math.round(frame.bottom + BOTTOM);
    const inside = { line: lines, bar: bars, scatter: bubbles, forest }[figure.kind](figure, frame);
    let content = `<g transform="translate(0 ${alone ? TITLE : 0})">${names}</g>${axes(figure, frame)}${inside}`
      + (isLabelled(figure, width) ? directLabels(figure, frame) : "");
    if (alone) content = `<style>${resolved(data("chart-style"))}</style><rect class="back" width="${width}" height="${total}"/>`
      + `<text class="title" x="16" y="26">${text(figure.title)}</text>` + content;
    return { content, frame, height: total };
  }
  function standalone(figure) {
    const { content, height } = draw(figure, WIDTH, true);
    return [`<svg class="plot" viewBox="0 0 ${WIDTH} ${height}" role="img" xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" `
      + `height="${height}">${content}</svg>`, WIDTH, height];
  }
  return { data, make, svgNode, save, saveText, savePng, resolved, dot, fixed, short, labels, ticks, visible, draw, standalone };
})();
