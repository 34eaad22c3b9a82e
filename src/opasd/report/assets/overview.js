"use strict";
// Parts of the attention viewer: rows of weights, the curves along a trajectory, the map, and where the two differ most.
opasd.attention = (() => {
  const OCTAVES = 11, LEVELS = 126, WEIGHT = Float64Array.from({ length: 256 }, (_, level) =>
    level ? 2 ** ((level - 1) * OCTAVES / LEVELS - OCTAVES) : 0);
  const percent = (value) => { const size = Math.abs(value);
    return size >= 0.0995 ? (100 * value).toFixed(0) + " %" : size >= 0.00095 ? (100 * value).toFixed(1) + " %" : size > 0 ? "< 0.1 %" : "0 %"; };
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + percent(Math.abs(value));
  const fine = (value) => value === 0 ? "0" : value < 0.001 ? value.toExponential(1) : value.toFixed(value < 0.1 ? 4 : 3);
  const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);

  // A function step ─► the row of weights, from the bytes of all steps.
  async function unpack(pack, seen) {
    const bytes = Uint8Array.from(atob(pack.rows), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const levels = new Uint8Array(await new Response(stream).arrayBuffer()), starts = [0];
    for (const count of seen) starts.push(starts.at(-1) + count);
    return (step) => {
      const row = new Float64Array(seen[step]), top = pack.largest[step], start = starts[step];
      for (let at = 0; at < row.length; at += 1) row[at] = top * WEIGHT[levels[start + at]];
      return row;
    };
  }
  return { unpack, percent, signed, fine, most, OCTAVES };
})();
opasd.overview = ({ state, current, firstStage, lastStage, curves, canvas, cursor, band, mapKey, top, columns, show, line, badges }) => {
  const { make, svgNode: svg, ticks, labels } = opasd, { percent, signed, fine, most } = opasd.attention;

  // ---- curves and map ----------------------------------------------------------------------------------------------
  const LEFT = 46, RIGHT = 10;
  const across = (step, width) => LEFT + (current().steps < 2 ? 0.5 : step / (current().steps - 1)) * (width - LEFT - RIGHT);
  function curveParts(width, height) {
    const now = current();
    const parts = [], half = (height - 18) / 2, stride = Math.max(1, Math.floor(now.steps / 1500));
    const label = (text, x, y, anchor = "start", className = "") => { const node = svg("text", { x, y, "text-anchor": anchor, class: className }); node.textContent = text; parts.push(node); };
    const plot = (from, to, highest, share, series) => {
      const marked = ticks(0, highest, 2), texts = labels(marked, share), down = (value) => to - value / highest * (to - from);
      marked.forEach((value, at) => { parts.push(svg("line", { class: "v-base", x1: LEFT, x2: width - RIGHT, y1: down(value), y2: down(value) }));
        label(texts[at], LEFT - 5, down(value) + 4, "end"); });
      for (const [values, className] of series) {
        let d = "";
        for (let step = 0; step < now.steps; step += stride) d += `${step ? "L" : "M"}${across(step, width).toFixed(1)} ${down(values[step]).toFixed(1)}`;
        parts.push(svg("path", { class: className, d: className === "v-area" ? `${d}V${to}H${LEFT}Z` : d }));
      }
    };
    plot(18, half - 2, Math.max(most(now.rho), 0.05), true, [...(now.rhoText ? [[now.rhoText, "v-area"]] : []), [now.rho, "v-rho"]]);
    const narrow = width < 480;
    label(`ρ${narrow ? "" : ": teacher's attention on the solution"}${now.rhoText ? (narrow ? " (filled: on the solution's own text)" : "; filled: on its own text") : ""}`, LEFT, 12);
    const shown = new Set([firstStage(), lastStage()]);
    plot(half + 16, height - 18, Math.max(most(now.students.map((one) => most(one.divergence))), 1e-9), false,
      now.students.map((one, at) => [one.divergence, shown.has(at) && at === lastStage() ? "v-div" : "v-other"]));
    const others = now.names.filter((_, at) => at !== lastStage());
    label(`${now.divergence}${narrow ? "," : ", projected teacher and student"}${now.names.length > 1 ? ` ${now.names[lastStage()]} (dashed: ${others.join(", ")})` : ""}`, LEFT, half + 11);
    const marked = ticks(1, now.steps, Math.max(2, Math.floor(width / 110)), true).filter((step) => step >= 1);
    for (const step of marked) if (across(step - 1, width) < width - RIGHT - 40) label(String(step), across(step - 1, width), height - 4, "middle");
    label("step", width - RIGHT, height - 4, "end");
    return parts;
  }
  const line1 = svg("line", { class: "v-cursor" });
  let width = 800, height = 150;
  function drawCurves() {
    const now = current();
    width = curves.clientWidth || 800;
    height = curves.clientHeight || 150;
    curves.setAttribute("viewBox", `0 0 ${width} ${height}`);
    curves.replaceChildren(...curveParts(width, height), line1);
    if (now.values) moveCursors();
  }
  function moveCursors() {
    const now = current();
    const x = across(state.step, width).toFixed(1);
    for (const [name, value] of [["x1", x], ["x2", x], ["y1", 16], ["y2", height - 16]]) line1.setAttribute(name, value);
    cursor.style.left = `${(100 * (state.step + 0.5) / now.steps).toFixed(2)}%`;
  }
  const rgb = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
  let drawing = 0;
  // Step × position in cells of a picture, filled a few steps at a time so that the page stays awake.
  function drawMap() {
    const now = current();
    const mine = drawing += 1, source = state.map, stage = lastStage(), { record, steps } = now;
    const length = source === "teacher" ? record.teacher.tokens.length : record.shared.student.length;
    const width = Math.min(steps, 600), height = Math.min(length, 150), sums = new Float64Array(width * height);
    const rowOf = { teacher: now.teacher, projected: now.projected, student: now.students[stage].rows,
      difference: (step) => { const own = now.students[stage].rows(step); return now.projected(step).map((value, at) => value - own[at]); } }[source];
    canvas.width = width; canvas.height = height;
    const from = state.skip ? 1 : 0;
    let step = 0;
    const paint = () => {
      const image = canvas.getContext("2d").createImageData(width, height), up = rgb(source === "student" ? "--student" : source === "projected" ? "--projected" : "--teacher"), down = rgb("--student");
      let highest = 0;
      for (const value of sums) highest = Math.max(highest, Math.abs(value));
      sums.forEach((value, at) => { image.data.set([...(value < 0 ? down : up), 255 * Math.sqrt(Math.abs(value) / (highest || 1))], 4 * at); });
      canvas.getContext("2d").putImageData(image, 0, 0);
    };
    const work = () => {
      if (mine !== drawing) return;
      for (const until = Math.min(steps, step + Math.max(20, Math.floor(6e5 / length))); step < until; step += 1) {
        const row = rowOf(step), x = Math.floor(step * width / steps);
        for (let at = from; at < row.length; at += 1) if (row[at]) sums[Math.floor(at * height / length) * width + x] += row[at];
      }
      paint();
      if (step < steps) setTimeout(work); else canvas.dataset.ready = "yes";
    };
    canvas.dataset.ready = "";
    mapKey.textContent = `${source === "difference" ? "teacher − student" : source}: step → 1 to ${steps}, position ↓ 1 to ${length}${source === "teacher" ? "; a line at the left: the solution" : ""}`;
    const [begin, end] = record.teacher.solution;
    band.hidden = source !== "teacher" || end <= begin;
    band.style.top = `${(100 * begin / length).toFixed(2)}%`;
    band.style.height = `${(100 * (end - begin) / length).toFixed(2)}%`;
    work();
  }

  // ---- words ---------------------------------------------------------------------------------------------------------
  const split = (step) => { const now = current(); return now.rhoText ? `${percent(now.rhoText[step])} its own text, ${percent(Math.max(0, now.rho[step] - now.rhoText[step]))} the words around it` : ""; };
  function drawWords() {
    const now = current();
    const { record } = now, { step } = state, rho = now.rho[step];
    columns.teacher.note.textContent = `${percent(rho)} of its attention is on the solution${now.rhoText ? ` (${split(step)})` : ""}.`;
    columns.teacher.label.textContent = `only the teacher sees this${now.rhoText ? `; ${percent(now.rhoText[step])} on its text` : ""}`;
    columns.projected.note.textContent = { project: "The same without the solution, renormalised: what the student is taught.",
      redistribute: "The solution's share given to the prompt: what the student is taught.",
      shuffle: "The solution's share given to shuffled prompt positions: what the student is taught." }[record.handling] || "What the student is taught.";
    for (const [name, stage] of [["student", firstStage()], ["second", lastStage()]]) {
      const when = now.names.length > 1 ? ` ${now.names[stage]} training` : "";
      columns[name].heading.textContent = "Student" + when;
      columns[name].note.textContent = `${now.divergence} from the projected teacher: ${fine(now.students[stage].divergence[step])}.`;
    }
    const token = record.student.tokens[record.student.prompt + step] ?? "";
    line.replaceChildren(make("span", {}, "step ", make("b", { textContent: step + 1 }), ` of ${now.steps}`),
      make("span", {}, "predicts ", make("code", { textContent: JSON.stringify(token).slice(1, -1) || "·" })),
      make("span", {}, "ρ ", make("b", { textContent: percent(rho) }), ...(now.rhoText ? [make("span", { className: "soft", textContent: ` (${percent(now.rhoText[step])} solution text)` })] : [])),
      make("span", {}, `${now.divergence} `, make("b", { textContent: fine(now.students[lastStage()].divergence[step]) }), ...(now.names.length > 1
        ? [make("span", { className: "soft", textContent: `  (${now.names.map((name, at) => `${name} ${fine(now.students[at].divergence[step])}`).join(", ")})` })] : [])),
      ...(state.pinned ? [make("span", { className: "badge info", textContent: "held" })] : []));
  }

  // ---- where they differ most --------------------------------------------------------------------------------------
  function drawTop(rows) {
    const { record } = current(), shared = record.shared.student, tokens = record.student.tokens, found = [];
    const student = state.stage < 0 ? rows.second : rows.student;
    for (let at = 0; at < rows.projected.length; at += 1) {
      const gap = Math.abs(rows.projected[at] - (student[at] || 0));
      if (!gap || (found.length === 8 && gap <= found[7][3])) continue;
      const one = [at, rows.projected[at], student[at] || 0, gap], before = found.findIndex((other) => gap > other[3]);
      found.splice(before < 0 ? found.length : before, 0, one);
      found.length = Math.min(found.length, 8);
    }
    const highest = Math.max(1e-9, ...found.flatMap((one) => [one[1], one[2]]));
    const beam = (name, value) => { const bar = make("span", { className: "v-beam" });
      bar.style.width = Math.max(1, 90 * value / highest).toFixed(0) + "px"; bar.style.background = `rgb(var(--${name}))`;
      return make("td", {}, percent(value) + " ", bar); };
    const lines = found.map(([at, target, mine]) => {
      const flat = (from, to) => tokens.slice(Math.max(0, from), to).join("").replace(/\n+/g, "⏎");
      const spot = shared[at], around = make("code", { dir: "auto" }, flat(spot - 4, spot), make("em", { textContent: flat(spot, spot + 1) || "·" }), flat(spot + 1, spot + 4));
      const row = make("tr", {}, make("td", {}, around), beam("projected", target), beam("student", mine), make("td", { textContent: signed(target - mine) }));
      const flash = (on) => { for (const name of ["projected", "student"]) columns[name].spans[spot].classList.toggle("flash", on); };
      row.addEventListener("pointerenter", () => { show(columns.projected, spot); show(columns.student, spot); flash(true); });
      row.addEventListener("pointerleave", () => flash(false));
      return row;
    });
    const head = make("tr", {}, ...["position", "projected teacher", "student", "teacher − student"].map((textContent) => make("th", { textContent, scope: "col" })));
    const holder = make("div", { className: "wide", tabIndex: 0, ariaLabel: "Where they differ most" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines)));
    holder.setAttribute("role", "region");
    const focused = top.contains(document.activeElement);
    top.replaceChildren(make("b", { textContent: "Where they differ most at this step" }), holder);
    if (focused) holder.focus();
  }
  return { LEFT, RIGHT, curveParts, drawCurves, moveCursors, drawMap, drawTop, drawWords, split };
};
