"use strict";
(() => {
  const root = document.getElementById("viewer");
  if (!root) return;
  const records = JSON.parse(document.getElementById("attention-data").textContent);
  const OCTAVES = 11, LEVELS = 126;
  const make = (tag, options = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), options);
    node.append(...children);
    return node;
  };
  const svg = (tag, attributes = {}) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const percent = (value) => value >= 0.0995 ? (100 * value).toFixed(0) + " %" : value >= 0.00095
    ? (100 * value).toFixed(1) + " %" : value > 0 ? "< 0.1 %" : "0 %";
  const fine = (value) => value === 0 ? "0" : value < 0.001 ? value.toExponential(1) : value.toFixed(value < 0.1 ? 4 : 3);

  async function unpack(pack, seen) {
    const bytes = Uint8Array.from(atob(pack.rows), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const levels = new Uint8Array(await new Response(stream).arrayBuffer());
    const starts = [0];
    for (const count of seen) starts.push(starts.at(-1) + count);
    return (step) => {
      const row = new Float64Array(seen[step]), top = pack.largest[step];
      for (let at = 0; at < row.length; at += 1) {
        const level = levels[starts[step] + at];
        row[at] = level ? top * 2 ** ((level - 1) * OCTAVES / LEVELS - OCTAVES) : 0;
      }
      return row;
    };
  }

  const state = { record: 0, stage: 0, layer: 0, scale: "relative", skip: false, step: 0, pinned: false, playing: 0 };
  const panels = ["teacher", "projected", "student"];
  let now = null;   // the record that is shown, unpacked

  // ---- the frame ---------------------------------------------------------------------------------------------------
  const choose = make("select", { ariaLabel: "Trajectory" }, ...records.map((record, at) =>
    make("option", { value: at, textContent: record.title || `trajectory ${at + 1}` })));
  const stages = make("div", { className: "seg" });
  const layers = make("select", { ariaLabel: "Layer" });
  const scale = make("select", { ariaLabel: "Shading" }, ...[["relative", "shades: relative"], ["linear", "shades: linear"],
    ["log", "shades: log"]].map(([value, textContent]) => make("option", { value, textContent })));
  const skip = make("input", { type: "checkbox" });
  const play = make("button", { type: "button", className: "tool", textContent: "▶ play" });
  const wide = make("button", { type: "button", className: "tool", textContent: "full screen" });
  const jumps = make("select", { ariaLabel: "Go to" }, ...[["", "go to …"], ["div", "largest divergence"],
    ["rho", "most on the solution"], ["gain", "most changed by training"]].map(([value, textContent]) =>
    make("option", { value, textContent })));
  const save = make("button", { type: "button", className: "tool", textContent: "CSV" });
  const badges = make("div", { className: "v-badges" });
  const line = make("div", { className: "v-now", ariaLive: "polite" });
  const curves = svg("svg", { class: "v-curves", preserveAspectRatio: "none", role: "img",
    "aria-label": "ρ and the divergence along the trajectory; the slider below it changes the step" });
  const slide = make("input", { type: "range", className: "v-slide", min: 0, ariaLabel: "Step" });
  const columns = Object.fromEntries(panels.map((name) => {
    const text = make("div", { className: "v-text", dir: "auto" }), note = make("p"), key = make("div", { className: "v-key" });
    const dot = make("i");
    dot.style.background = `rgb(var(--${name}))`;
    const title = { teacher: "Teacher", projected: "Projected", student: "Student" }[name];
    const panel = make("section", { className: "v-panel" }, make("h3", {}, dot, title), note, text, key);
    panel.dataset.panel = name;
    return [name, { panel, text, note, key, spans: [], shade: [] }];
  }));
  const top = make("div", { className: "v-top" });
  root.append(
    make("div", { className: "v-bar" }, choose, stages, play, make("details", { className: "v-more", open: innerWidth > 860 },
      make("summary", { textContent: "options" }), make("div", {}, jumps, layers, scale,
        make("label", {}, skip, "without first token"), save, wide)), badges),
    line, curves, slide, make("div", { className: "v-panels" }, ...panels.map((name) => columns[name].panel)), top,
    make("p", { className: "v-hint" }, make("kbd", { textContent: "←" }), " ", make("kbd", { textContent: "→" }), " step  ",
      make("kbd", { textContent: "Home" }), " ", make("kbd", { textContent: "End" }), " first, last  ",
      make("kbd", { textContent: "B" }), " before / after  ", make("kbd", { textContent: "Space" }), " play  ",
      make("kbd", { textContent: "Esc" }), " let go of a held step"));
  choose.hidden = records.length < 2;

  // ---- one record --------------------------------------------------------------------------------------------------
  async function open(at) {
    const record = records[at];
    const shared = record.seen.shared, unpacked = { layers: {}, students: [] };
    for (const layer of record.layers) {
      unpacked.layers[layer.layer] = { rho: layer.rho, teacher: await unpack(layer.teacher, record.seen.teacher),
        projected: await unpack(layer.projected, shared) };
    }
    for (const view of record.views) unpacked.students.push({ ...view, rows: await unpack(view.student, shared) });
    now = { record, ...unpacked, steps: shared.length };
    const names = [...new Set(record.views.map((view) => view.stage))];
    now.names = names;
    state.stage = names.length - 1;
    state.layer = Math.min(...record.layers.map((layer) => layer.layer));
    stages.replaceChildren(...names.map((name, place) => {
      const button = make("button", { type: "button", textContent: name });
      button.addEventListener("click", () => { state.stage = place; draw(); });
      return button;
    }));
    stages.hidden = names.length < 2;
    jumps.querySelector("[value=gain]").hidden = names.length < 2;
    layers.replaceChildren(...record.layers.map((layer) => layer.layer).sort((a, b) => a - b).map((depth) =>
      make("option", { value: depth, textContent: depth === 1 ? "last layer" : `${depth}. layer from the end` })));
    layers.hidden = record.layers.length < 2;
    slide.max = now.steps - 1;
    const verdict = { true: ["answered right", "good"], false: ["answered wrong", "bad"] }[record.correct];
    badges.replaceChildren(...(verdict ? [make("span", { className: "badge " + verdict[1], textContent: verdict[0] })] : []),
      ...(record.trajectory ? [make("span", { className: "badge", textContent: "trajectory " + record.trajectory })] : []));
    layout(record);
    let first = 0;
    for (let step = 0; step < now.steps; step += Math.max(1, Math.floor(now.steps / 40))) {
      const row = columnsOf(step).student;
      first += row[0] || 0;
    }
    state.skip = skip.checked = first / Math.min(now.steps, 40) > 0.4;
    state.pinned = false;
    state.step = best((step) => viewOf(0).divergence[step]);
    draw();
    reveal();
    root.dataset.ready = "yes";
  }
  const viewOf = (stage) => now.students.find((view) => view.stage === now.names[stage] && view.layer === state.layer);
  const columnsOf = (step) => ({ teacher: now.layers[state.layer].teacher(step),
    projected: now.layers[state.layer].projected(step), student: viewOf(state.stage).rows(step) });
  function best(value) {
    let found = 0;
    for (let step = 1; step < now.steps; step += 1) if (value(step) > value(found)) found = step;
    return found;
  }

  function layout(record) {
    const { student, teacher, shared } = record, [begin, end] = teacher.solution;
    const visible = (text) => text.replace(/\n/g, "⏎\n");
    const place = (name, tokens, prompt, isShared) => {
      const column = columns[name];
      column.text.replaceChildren();
      column.shade = new Array(tokens.length).fill(-1);
      let box = column.text;
      column.spans = tokens.map((token, at) => {
        if (name === "teacher" && at === begin && end > begin) box = column.text.appendChild(make("span", { className: "v-sol" }));
        if (name === "teacher" && at === end) box = column.text;
        if (at === prompt) column.text.append(make("span", { className: "v-you", textContent: "the student's response" }));
        const span = make("span", { textContent: visible(token) });
        if (at >= prompt) { span.className = "r"; span.dataset.step = at - prompt; }
        if (!isShared.has(at) && !(name === "teacher" && at >= begin && at < end)) {
          span.classList.add("own");
          span.title = name === "teacher" ? "only in the teacher's context" : "only in the student's context: not compared";
        }
        box.append(span);
        return span;
      });
    };
    place("teacher", teacher.tokens, teacher.prompt, new Set(shared.teacher));
    place("projected", student.tokens, student.prompt, new Set(shared.student));
    place("student", student.tokens, student.prompt, new Set(shared.student));
  }

  // ---- drawing -----------------------------------------------------------------------------------------------------
  const strength = { relative: (a, most) => Math.max(0, (Math.sqrt(Math.min(a / most, 1)) - 0.1) / 0.9), linear: (a) => Math.min(a / 0.25, 1),
    log: (a, most) => Math.max(0, 1 + Math.log2(Math.min(a / most, 1)) / OCTAVES) };
  const scaleWords = { relative: (most) => percent(most), linear: () => "25 %", log: (most) => percent(most) };

  function draw() {
    if (!now) return;
    const { record } = now, step = state.step, rows = columnsOf(step), view = viewOf(state.stage);
    const queryLag = record.query === "generated" ? 0 : 1;
    let most = 0;
    for (const name of panels) rows[name].forEach((a, at) => { if (!(state.skip && at === 0)) most = Math.max(most, a); });
    most = most || 1;
    const positions = { teacher: null, projected: record.shared.student, student: record.shared.student };
    for (const name of panels) {
      const column = columns[name], full = new Float64Array(column.spans.length);
      rows[name].forEach((a, at) => { full[positions[name] ? positions[name][at] : at] = a; });
      const prompt = name === "teacher" ? record.teacher.prompt : record.student.prompt;
      const limit = prompt + step + 1 - queryLag;
      column.values = full;
      column.spans.forEach((span, at) => {
        const alpha = full[at] > 0 ? Math.round(100 * strength[state.scale](full[at], most)) : 0;
        const later = at >= limit, current = at === prompt + step;
        const code = alpha + (later ? 1000 : 0) + (current ? 5000 : 0);
        if (column.shade[at] === code) return;
        column.shade[at] = code;
        span.style.backgroundColor = alpha ? `rgb(var(--${name}) / ${(alpha * 0.92).toFixed(0)}%)` : "";
        span.classList.toggle("hot", alpha > 62);
        span.classList.toggle("later", later && !current);
        span.classList.toggle("now", current);
      });
      const bar = make("i");
      bar.style.background = `linear-gradient(90deg, rgb(var(--${name}) / 0%), rgb(var(--${name}) / 92%))`;
      column.key.replaceChildren("0", bar, scaleWords[state.scale](most));
    }
    const rho = now.layers[state.layer].rho[step], divergence = view.divergence[step];
    columns.teacher.note.textContent = `${percent(rho)} of its attention is on the solution. It is ${record.teacher_note
      || "the model with the solution in view"}.`;
    columns.projected.note.textContent = { project: "The same without the solution, renormalised: what the student is taught.",
      redistribute: "The solution's share given to the prompt: what the student is taught.",
      shuffle: "The solution's share given to shuffled prompt positions: what the student is taught." }[record.handling]
      || "What the student is taught.";
    columns.student.note.textContent = (now.names.length > 1 ? `The student ${now.names[state.stage]} training. ` : "")
      + `Divergence from the projected teacher: ${fine(divergence)}.`;
    const token = record.student.tokens[record.student.prompt + step];
    line.replaceChildren(make("span", {}, "step ", make("b", { textContent: step + 1 }), ` of ${now.steps}`),
      make("span", {}, "predicts ", make("code", { textContent: JSON.stringify(token).slice(1, -1) || "·" })),
      make("span", {}, "ρ ", make("b", { textContent: percent(rho) })),
      make("span", {}, `divergence `, make("b", { textContent: fine(divergence) }), ...(now.names.length > 1
        ? [make("span", { className: "soft", textContent: `  (${now.names.map((name, at) =>
          `${name} ${fine(viewOf(at).divergence[step])}`).join(", ")})` })] : [])),
      ...(state.pinned ? [make("span", { className: "badge info", textContent: "held" })] : []));
    [...stages.children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === state.stage)));
    slide.value = step;
    root.dataset.step = step;
    root.dataset.stage = now.names[state.stage];
    drawCurves();
    drawTop(rows);
  }

  function drawCurves() {
    const width = curves.clientWidth || 800, height = curves.clientHeight || 150, left = 12, right = width - 12;
    curves.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const across = (step) => left + (now.steps < 2 ? 0.5 : step / (now.steps - 1)) * (right - left);
    const half = height / 2, rho = now.layers[state.layer].rho;
    const path = (values, most, from, to) => values.map((value, step) =>
      `${step ? "L" : "M"}${across(step).toFixed(1)} ${(to - value / most * (to - from)).toFixed(1)}`).join("");
    const all = now.names.map((_, at) => viewOf(at).divergence), highest = all.flat().reduce((a, b) => Math.max(a, b), 1e-9);
    const most = rho.reduce((a, b) => Math.max(a, b), 0.05);
    const parts = [
      svg("line", { class: "v-base", x1: left, x2: right, y1: half - 3, y2: half - 3 }),
      svg("line", { class: "v-base", x1: left, x2: right, y1: height - 6, y2: height - 6 }),
      svg("path", { class: "v-rho", d: path(rho, most, 20, half - 3) }),
      ...all.map((values, at) => svg("path", { class: at === state.stage ? "v-div" : "v-other",
        d: path(values, highest, half + 17, height - 6) })),
      svg("line", { class: "v-cursor", x1: across(state.step), x2: across(state.step), y1: 4, y2: height - 4 })];
    const label = (text, y) => { const node = svg("text", { x: left, y }); node.textContent = text; return node; };
    parts.push(label(`ρ: the teacher's attention on the solution (up to ${percent(most)})`, 14),
      label(`divergence of the student${now.names.length > 1 ? `, ${now.names[state.stage]} (dashed: ${now.names.filter((_, at) =>
        at !== state.stage).join(", ")})` : ""} (up to ${fine(highest)})`, half + 11));
    curves.replaceChildren(...parts);
  }

  function drawTop(rows) {
    const { record } = now, shared = record.shared.student, tokens = record.student.tokens;
    const found = [...rows.projected].map((target, at) => [at, target, rows.student[at] || 0])
      .sort((a, b) => Math.abs(b[1] - b[2]) - Math.abs(a[1] - a[2])).slice(0, 8).filter((one) => one[1] !== one[2]);
    const most = Math.max(1e-9, ...found.flatMap((one) => [one[1], one[2]]));
    const beam = (name, value) => {
      const bar = make("span", { className: "v-beam" });
      bar.style.width = Math.max(1, 90 * value / most).toFixed(0) + "px";
      bar.style.background = `rgb(var(--${name}))`;
      return make("td", {}, percent(value) + " ", bar);
    };
    const rowsOf = found.map(([at, target, mine]) => {
      const place = shared[at], around = make("code", { dir: "auto" }, tokens.slice(Math.max(0, place - 4), place).join(""),
        make("em", { textContent: tokens[place].replace(/\n/g, "⏎") || "·" }), tokens.slice(place + 1, place + 4).join(""));
      const difference = (target > mine ? "+" : "−") + percent(Math.abs(target - mine));
      const row = make("tr", {}, make("td", {}, around), beam("projected", target), beam("student", mine),
        make("td", { textContent: difference }));
      const flash = (on) => { for (const name of ["projected", "student"]) columns[name].spans[place].classList.toggle("flash", on); };
      row.addEventListener("pointerenter", () => { flash(true); show(columns.projected, place); show(columns.student, place); });
      row.addEventListener("pointerleave", () => flash(false));
      return row;
    });
    const head = make("tr", {}, ...["position", "projected teacher", "student", "teacher − student"].map((textContent) =>
      make("th", { textContent })));
    for (const cell of head.cells) cell.style.padding = "7px 12px";
    top.replaceChildren(make("b", { textContent: "Where they differ most at this step" }), make("div", { className: "wide" },
      make("table", {}, make("thead", {}, head), make("tbody", {}, ...rowsOf))));
  }

  // ---- moving ------------------------------------------------------------------------------------------------------
  function show(column, at) {
    const span = column.spans[at], box = column.text;
    if (!span) return;
    const above = span.offsetTop - box.scrollTop, room = box.clientHeight;
    if (above < 24 || above > room - 40) box.scrollTop = span.offsetTop - 0.72 * room;
  }
  const reveal = () => {
    show(columns.teacher, now.record.teacher.prompt + state.step);
    for (const name of ["projected", "student"]) show(columns[name], now.record.student.prompt + state.step);
  };
  function go(step, scroll = true) {
    if (!now) return;
    const next = Math.max(0, Math.min(now.steps - 1, step));
    if (next === state.step) return;
    state.step = next;
    draw();
    if (scroll) reveal();
  }
  const stop = () => { clearInterval(state.playing); state.playing = 0; play.textContent = "▶ play"; };
  const toggle = () => {
    if (state.playing || !now) return stop();
    play.textContent = "❚❚ pause";
    if (state.step >= now.steps - 1) go(0);
    state.playing = setInterval(() => state.step >= now.steps - 1 ? stop() : go(state.step + 1), 160);
  };
  for (const name of panels) {
    const { text } = columns[name];
    text.addEventListener("pointerover", (event) => {
      const { step } = event.target.dataset || {};
      if (step === undefined) {
        const at = columns[name].spans.indexOf(event.target);
        if (at >= 0 && columns[name].values) event.target.title ||= percent(columns[name].values[at]);
        return;
      }
      if (!state.pinned && event.pointerType !== "touch") go(+step, false);
    });
    text.addEventListener("click", (event) => {
      const { step } = event.target.dataset || {};
      if (step === undefined) return;
      state.pinned = !(state.pinned && +step === state.step);
      if (+step === state.step) draw(); else go(+step, false);
    });
  }
  const drag = (event) => {
    if (!now || event.type === "pointermove" && (state.pinned ? !event.buttons : event.pointerType === "touch" && !event.buttons)) return;
    const box = curves.getBoundingClientRect();
    go(Math.round((event.clientX - box.left - 12) / (box.width - 24) * (now.steps - 1)));
  };
  curves.addEventListener("pointermove", drag);
  curves.addEventListener("pointerdown", drag);
  slide.addEventListener("input", () => go(+slide.value));
  choose.addEventListener("change", () => { stop(); open(state.record = +choose.value).catch(damaged); });
  layers.addEventListener("change", () => { state.layer = +layers.value; draw(); });
  scale.addEventListener("change", () => { state.scale = scale.value; draw(); });
  skip.addEventListener("change", () => { state.skip = skip.checked; draw(); });
  play.addEventListener("click", toggle);
  save.addEventListener("click", () => {
    if (!now) return;
    const { record } = now, quote = (text) => /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const rows = [["step", "token", "rho", ...now.names.map((name) => `divergence ${name}`)]];
    for (let step = 0; step < now.steps; step += 1) {
      const token = record.student.tokens[record.student.prompt + step] ?? "";
      rows.push([String(step + 1), /^[=@+\-\t\r]/.test(token) ? "'" + token : token,
        ...[now.layers[state.layer].rho, ...now.names.map((_, at) => viewOf(at).divergence)].map((one) => String(one[step]))]);
    }
    const text = rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
    const link = make("a", { download: "attention.csv", href: URL.createObjectURL(new Blob([text], { type: "text/csv" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  wide.addEventListener("click", () => document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen?.());
  wide.hidden = !root.requestFullscreen;
  jumps.addEventListener("change", () => {
    const values = { div: (step) => viewOf(state.stage).divergence[step], rho: (step) => now.layers[state.layer].rho[step],
      gain: (step) => Math.abs(viewOf(0).divergence[step] - viewOf(now.names.length - 1).divergence[step]) }[jumps.value];
    if (values && now) go(best(values));
    jumps.value = "";
  });
  // On a page of its own all keys are the viewer's; in a report those typed over it, or in it while it is in sight.
  const alone = document.querySelectorAll("main > section").length === 1;
  const inSight = () => { const box = root.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; };
  const meant = (node) => alone || root.matches(":hover") || (root.contains(node) && inSight());
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    if (target.closest("select, textarea, input:not([type=range], [type=checkbox])") || !meant(target)) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { ArrowLeft: () => go(state.step - 1), ArrowRight: () => go(state.step + 1), Home: () => go(0),
      End: () => go(now.steps - 1), b: () => { state.stage = (state.stage + 1) % now.names.length; draw(); },
      " ": toggle, Escape: () => { state.pinned = false; draw(); } };
    const act = keys[event.key] || keys[event.key.toLowerCase()];
    if (!act || !now || (event.key === " " && target.closest("button, summary, [type=checkbox]"))) return;
    event.preventDefault();
    act();
  });
  addEventListener("resize", () => now && drawCurves());
  if (typeof DecompressionStream === "undefined") {
    root.replaceChildren(make("p", { textContent: "This browser is too old for the attention viewer." }));
  } else open(0).catch(damaged);
  function damaged(error) {
    now = null;
    for (const node of [badges, stages, curves, top, ...panels.map((name) => columns[name].text)]) node.replaceChildren();
    line.replaceChildren("The attention record is damaged: " + error.message);
    root.dataset.ready = "damaged";
  }
})();
