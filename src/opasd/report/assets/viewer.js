"use strict";
(() => {
  const root = document.getElementById("viewer");
  if (!root) return;
  const { make, svgNode: svg } = opasd, records = opasd.data("attention-data");
  const { unpack, percent, signed, fine, most, OCTAVES } = opasd.attention;

  const state = { record: 0, stage: 0, layer: 0, head: -1, scale: "relative", map: "teacher", skip: false, step: 0, pinned: false, playing: 0 };
  const alone = document.querySelectorAll("main > section").length === 1;
  const BOTH = "side by side", panels = ["teacher", "projected", "student", "second"];
  let now = null, opening = 0;   // the record that is shown, unpacked; how often one was asked for

  // ---- the frame ---------------------------------------------------------------------------------------------------
  const select = (ariaLabel, options) => make("select", { ariaLabel }, ...options.map(([value, textContent]) => make("option", { value, textContent })));
  const tool = (textContent, title) => make("button", { type: "button", className: "tool", textContent, title: title || "" });
  const choose = select("Trajectory", records.map((record, at) => [at, record.title || `trajectory ${at + 1}`]));
  const stages = make("div", { className: "seg" }), layers = select("Layer", []), heads = select("Head", []);
  const scale = select("Shading", [["relative", "shades: relative"], ["linear", "shades: linear"], ["log", "shades: log"],
    ["difference", "shades: teacher − student"]]);
  const mapOf = select("Map", [["teacher", "map: teacher"], ["projected", "map: projected"], ["student", "map: student"], ["difference", "map: teacher − student"]]);
  const skip = make("input", { type: "checkbox" });
  const play = tool("▶ play"), wide = tool("full screen"), save = tool("CSV", "the curves, with their tokens");
  const asSvg = tool("SVG", "this view as a slide"), asPng = tool("PNG", "this view as a slide"), link = tool("link", "a link that opens here");
  const jumps = select("Go to", [["", "go to …"], ["div", "largest divergence"], ["rho", "most on the solution"], ["gain", "most changed by training"]]);
  const badges = make("div", { className: "v-badges" }), line = make("div", { className: "v-now", ariaLive: "polite" });
  const curves = svg("svg", { class: "v-curves", role: "img", "aria-label": "ρ and the divergence along the trajectory; the slider below changes the step" });
  const canvas = make("canvas", { className: "v-map", tabIndex: 0, ariaLabel: "Overview: attention by step, left to right, and position, top to bottom; a click goes there" });
  canvas.setAttribute("role", "img");
  const cursor = make("div", { className: "v-cross" }), band = make("div", { className: "v-band" }), mapBox = make("div", { className: "v-mapbox" }, canvas, band, cursor), mapKey = make("div", { className: "v-mapkey" });
  const slide = make("input", { type: "range", className: "v-slide", min: 0, ariaLabel: "Step" });
  const box = (ariaLabel, className) => { const made = make("div", { className, tabIndex: 0, ariaLabel, dir: "auto" }); made.setAttribute("role", "region"); return made; };
  const columns = Object.fromEntries(panels.map((name) => {
    const title = { teacher: "Teacher", projected: "Projected", student: "Student", second: "Student" }[name];
    const text = box(`${title}'s context${name === "second" ? ", after training" : ""}`, "v-text"), note = make("p"), key = make("div", { className: "v-key" }), dot = make("i");
    const hue = name === "second" ? "student" : name, heading = make("span", { textContent: title });
    dot.style.background = `rgb(var(--${hue}))`;
    const titled = make("div", { className: "v-title", ariaLevel: alone ? 2 : 3 }, dot, heading);
    titled.setAttribute("role", "heading");
    const label = make("div", { className: "v-sollabel" }), solution = name === "teacher" ? box("The solution, which only the teacher sees", "v-sol") : null;
    const panel = make("section", { className: "v-panel" }, titled, note, ...(solution ? [label, solution] : []), text, key);
    panel.dataset.panel = name;
    return [name, { name, hue, panel, heading, text, solution, label, note, key, spans: [], shade: [], tops: null }];
  }));
  const top = make("div", { className: "v-top" }), who = make("p", { className: "v-hint" });
  root.append(
    make("div", { className: "v-bar" }, choose, stages, play, badges, make("details", { className: "v-more", open: innerWidth > 860 },
      make("summary", { textContent: "options" }), make("div", {}, jumps, layers, heads, scale, mapOf,
        make("label", {}, skip, "without first token"), asSvg, asPng, save, link, wide))),
    line, make("div", { className: "v-views" }, make("div", {}, curves, slide), make("div", {}, mapBox, mapKey)),
    make("div", { className: "v-panels" }, ...panels.map((name) => columns[name].panel)), who, top,
    make("p", { className: "v-hint" }, ...[["←"], ["→", "step"], ["Home"], ["End", "first, last"], ["B", "before / after"], ["S", "side by side"], ["Space", "play"],
      ["Esc", "let go of a held step"]].flatMap(([key, words]) => [make("kbd", { textContent: key }), words ? ` ${words}  ` : " "])));
  choose.hidden = records.length < 2;

  // ---- one record --------------------------------------------------------------------------------------------------
  const options = (node, pairs) => node.replaceChildren(...pairs.map(([value, textContent]) => make("option", { value, textContent })));
  async function open(at, wanted = {}) {
    const record = records[at], shared = record.seen.shared;
    const names = [...new Set(record.views.map((view) => view.stage))];
    const next = { record, names, steps: shared.length, sources: {}, divergence: nameOf(record) }, turn = opening += 1;
    root.dataset.ready = "";
    choose.value = at;
    const depths = record.layers.map((layer) => layer.layer).sort((a, b) => a - b);
    const layer = depths.includes(+wanted.layer) ? +wanted.layer : depths[0], count = record.layers[0].heads?.length || 0;
    const head = wanted.head !== undefined && +wanted.head >= 1 && +wanted.head <= count ? +wanted.head - 1 : -1;
    Object.assign(next, await load(next, layer, head));
    if (turn !== opening) return;   // another was asked for meanwhile; until here the one before is shown, whole
    now = next;
    Object.assign(state, { record: at, layer, head });
    state.stage = names.includes(wanted.stage) ? names.indexOf(wanted.stage) : wanted.stage === BOTH && names.length > 1 ? -1 : names.length - 1;
    stages.replaceChildren(...[...names, ...(names.length > 1 ? [BOTH] : [])].map((name, place) => {
      const button = make("button", { type: "button", textContent: name });
      button.addEventListener("click", () => setStage(place < names.length ? place : -1));
      return button;
    }));
    stages.hidden = names.length < 2;
    jumps.querySelector("[value=gain]").hidden = names.length < 2;
    options(layers, depths.map((depth) => [depth, depth === 1 ? "last layer" : `${depth}. layer from the end`]));
    options(heads, [[-1, "mean of heads"], ...Array.from({ length: count }, (_, head) => [head, `head ${head + 1}`])]);
    layers.value = state.layer; heads.value = state.head; layers.hidden = depths.length < 2; heads.hidden = !count;
    slide.max = now.steps - 1;
    const verdict = { true: ["answered right", "good"], false: ["answered wrong", "bad"] }[record.correct];
    badges.replaceChildren(...(verdict ? [make("span", { className: "badge " + verdict[1], textContent: verdict[0] })] : []),
      ...(record.trajectory ? [make("span", { className: "badge", textContent: "trajectory " + record.trajectory })] : []));
    for (const name of panels) { columns[name].spans = []; columns[name].shade = []; columns[name].tops = null; }
    let first = 0;
    for (let step = 0; step < now.steps; step += Math.max(1, Math.floor(now.steps / 40))) first += now.students[0].rows(step)[0] || 0;
    state.skip = skip.checked = first / Math.min(now.steps, 40) > 0.4;
    const asked = Math.round(+wanted.step) - 1;
    state.pinned = asked >= 0 && asked < now.steps;
    state.step = state.pinned ? asked : best((step) => now.students[0].divergence[step]);
    who.textContent = `Teacher: ${record.teacher_note || "the model with the solution in view"}.`;
    place(); drawCurves(); drawMap(); draw(true);
    root.dataset.ready = "yes";
  }
  const nameOf = (record) => ({ jsd: `JSD (β = ${record.jsd_beta ?? 0.5})`, forward_kl: "forward KL", reverse_kl: "reverse KL" })[record.divergence] || record.divergence || "divergence";
  // Unpack a layer and a head of what is shown, once.
  async function load(shown, depth, head) {
    const { record } = shown, wanted = `${depth} ${head}`;
    if (!shown.sources[wanted]) {
      const pick = (part) => head < 0 ? part : part.heads[head];
      const layer = pick(record.layers.find((one) => one.layer === depth));
      const views = shown.names.map((name) => pick(record.views.find((view) => view.stage === name && view.layer === depth)));
      shown.sources[wanted] = { rho: layer.rho, rhoText: layer.rho_text, teacher: await unpack(layer.teacher, record.seen.teacher),
        projected: await unpack(layer.projected, record.seen.shared),
        students: await Promise.all(views.map(async (view) => ({ divergence: view.divergence, rows: await unpack(view.student, record.seen.shared) }))) };
    }
    return shown.sources[wanted];
  }
  const firstStage = () => state.stage < 0 ? 0 : state.stage, lastStage = () => state.stage < 0 ? now.names.length - 1 : state.stage;
  function best(value) {
    let found = 0;
    for (let step = 1; step < now.steps; step += 1) if (value(step) > value(found)) found = step;
    return found;
  }

  const { LEFT, RIGHT, curveParts, drawCurves, moveCursors, drawMap, drawTop, drawWords, split } = opasd.overview({ state, current: () => now, firstStage, lastStage,
    curves, canvas, cursor, band, mapKey, top, columns, show, line, badges });

  // ---- the tokens --------------------------------------------------------------------------------------------------
  const visible = (token) => token === "" ? "" : token.replace(/\n/g, "⏎\n").replace(/^ +$/, (spaces) => "·".repeat(spaces.length));
  function place() {
    const { record } = now, { student, teacher, shared } = record, [begin, end] = teacher.solution;
    columns.second.panel.hidden = state.stage >= 0;
    root.classList.toggle("v-four", state.stage < 0);
    for (const name of panels) {
      const column = columns[name], own = name === "teacher", { tokens, prompt } = own ? teacher : student;
      if (column.panel.hidden || column.spans.length) continue;
      const isShared = new Set(own ? shared.teacher : shared.student), parts = [], inside = [];
      column.base = new Array(tokens.length).fill("");
      column.spans = tokens.map((token, at) => {
        if (at === prompt) parts.push(make("span", { className: "v-you", textContent: "the student's response" }));
        const isSolution = own && at >= begin && at < end, words = [];
        if (at >= prompt) words.push("r");
        if (!isShared.has(at) && !isSolution) words.push("own");
        if (isSolution && record.teacher.text && !(at >= record.teacher.text[0] && at < record.teacher.text[1])) words.push("around");
        column.base[at] = words.join(" ");
        const span = make("span", { className: column.base[at], textContent: visible(token) });
        if (at >= prompt) span.dataset.step = at - prompt;
        span.dataset.at = at;
        if (own && at === begin && end > begin) parts.push(make("span", { className: "v-gap", textContent: "▲ the solution, above" }));
        (isSolution ? inside : parts).push(span);
        return span;
      });
      column.text.replaceChildren(...parts);
      column.solution?.replaceChildren(...inside);
      column.shade = new Int32Array(tokens.length).fill(-1);
      column.areas = [{ box: column.text, from: 0, spans: column.spans.filter((_, at) => !(own && at >= begin && at < end)) },
        ...(own && end > begin ? [{ box: column.solution, spans: column.spans.slice(begin, end) }] : [])];
      column.tops = null;
    }
    columns.teacher.solution.hidden = columns.teacher.label.hidden = end <= begin;
  }
  // The spans in sight. Places are measured once and searched: a step must ask the browser for no layout.
  function measure(column) {
    for (const area of column.areas) {
      area.tops = Float64Array.from(area.spans, (span) => span.offsetTop);
      area.height = area.box.clientHeight;
      area.scroll = area.box.scrollTop;
    }
    column.tops = new Float64Array(column.spans.length);
    for (const area of column.areas) area.spans.forEach((span, at) => { column.tops[+span.dataset.at] = area.tops[at]; });
  }
  function inSight(column) {
    if (!column.tops) measure(column);
    return column.areas.flatMap(({ spans, tops, height, scroll }) => {
      const find = (value) => { let low = 0, high = tops.length;
        while (low < high) { const middle = (low + high) >> 1; if (tops[middle] < value) low = middle + 1; else high = middle; } return low; };
      return printing ? spans : spans.slice(Math.max(0, find(scroll - 40)), find(scroll + height + 10));
    });
  }
  let printing = false;

  // ---- drawing -----------------------------------------------------------------------------------------------------
  const strength = { relative: (a, top_) => Math.max(0, (Math.sqrt(Math.min(a / top_, 1)) - 0.1) / 0.9), linear: (a) => Math.min(a / 0.25, 1),
    log: (a, top_) => Math.max(0, 1 + Math.log2(Math.min(a / top_, 1)) / OCTAVES), difference: (a, top_) => Math.sqrt(Math.min(a / top_, 1)) };
  const scaleWords = (top_) => state.scale === "linear" ? "25 %" : percent(top_);
  // The values of every panel at the step, by position of its own context.
  function values(step) {
    const { record } = now, shared = record.shared.student, difference = state.scale === "difference";
    const rows = { teacher: now.teacher(step), projected: now.projected(step), student: now.students[firstStage()].rows(step),
      second: state.stage < 0 ? now.students[lastStage()].rows(step) : new Float64Array(0) };
    const spread = (row) => { const full = new Float64Array(record.student.tokens.length); for (let at = 0; at < row.length; at += 1) full[shared[at]] = row[at]; return full; };
    const minus = (row) => rows.projected.map((value, at) => value - (row[at] || 0));
    const full = { teacher: rows.teacher, projected: spread(difference ? minus(rows[state.stage < 0 ? "second" : "student"]) : rows.projected),
      student: spread(difference ? minus(rows.student) : rows.student), second: spread(difference && state.stage < 0 ? minus(rows.second) : rows.second) };
    let top_ = 0;
    for (const name of difference ? ["projected", "student", "second"] : panels) {
      const from = state.skip ? 1 : 0, row = full[name];
      for (let at = from; at < row.length; at += 1) top_ = Math.max(top_, Math.abs(row[at]));
    }
    return { rows, full, top: top_ || 1 };
  }
  function draw(scroll = false) {
    if (!now) return;
    const { record } = now, step = state.step;
    now.values = values(step);
    if (scroll) reveal();   // before anything changes: a box that scrolls needs the layout
    drawWords();
    for (const name of panels) if (!columns[name].panel.hidden) shade(columns[name]);
    [...stages.children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === (state.stage < 0 ? now.names.length : state.stage))));
    slide.value = step;
    slide.setAttribute("aria-valuetext", `step ${step + 1} of ${now.steps}`);
    root.dataset.step = step;
    root.dataset.stage = state.stage < 0 ? BOTH : now.names[state.stage];
    moveCursors();
    drawTop(now.values.rows);
    if (hovered) tell(hovered);
    root.dataset.drawn = record.title || "";
  }
  // Only tokens in sight are touched; the others when they come into sight.
  function shade(column) {
    const { record } = now, { full, top: top_ } = now.values, row = full[column.name], difference = state.scale === "difference" && column.name !== "teacher";
    const prompt = column.name === "teacher" ? record.teacher.prompt : record.student.prompt;
    const limit = prompt + state.step + (record.query === "generated" ? 1 : 0), tops = difference || state.scale !== "difference" ? top_ : most(row) || 1;
    const here = prompt + state.step;
    if (column.current !== here && column.spans[column.current]) {   // it may be out of sight by now
      column.spans[column.current].className = column.base[column.current];
      column.shade[column.current] = -1;
    }
    column.current = here;
    column.values = row;
    for (const span of inSight(column)) {
      const at = +span.dataset.at, value = row[at] || 0, rule = state.scale === "difference" && !difference ? "relative" : state.scale;
      const alpha = value ? Math.round(100 * strength[rule](Math.abs(value), tops)) : 0;
      const later = at >= limit, current = at === here, code = alpha + (later ? 1000 : 0) + (current ? 5000 : 0) + (value < 0 ? 20000 : 0);
      if (column.shade[at] === code) continue;
      column.shade[at] = code;
      const hue = difference ? (value < 0 ? "student" : "teacher") : column.hue;
      span.style.backgroundColor = alpha ? `rgb(var(--${hue}-shade) / ${(alpha * 0.92).toFixed(0)}%)` : "";
      span.className = column.base[at] + (current ? " now" : later ? " later" : "");
    }
    const bar = make("i");
    if (difference) {
      bar.style.background = "linear-gradient(90deg, rgb(var(--student-shade)), transparent, rgb(var(--teacher-shade)))";
      column.key.replaceChildren("student looks more", bar, `teacher, up to ${percent(top_)}`);
    } else {
      bar.style.background = `linear-gradient(90deg, transparent, rgb(var(--${column.hue}-shade) / 92%))`;
      column.key.replaceChildren("0", bar, state.scale === "difference" ? percent(tops) : scaleWords(top_));
    }
  }
  canvas.addEventListener("click", (event) => {
    if (!now) return;
    const area = canvas.getBoundingClientRect(), share = (event.clientY - area.top) / area.height;
    go(Math.floor((event.clientX - area.left) / area.width * now.steps));
    const { shared, teacher } = now.record;
    if (state.map === "teacher") show(columns.teacher, Math.floor(share * teacher.tokens.length));
    else for (const name of ["projected", "student", "second"]) show(columns[name], shared.student[Math.floor(share * shared.student.length)]);
  });

  // ---- what a token says -------------------------------------------------------------------------------------------
  let hovered = null;
  function tell([column, span]) {
    const at = +span.dataset.at, { record } = now, own = column.name === "teacher", prompt = own ? record.teacher.prompt : record.student.prompt;
    const value = column.values?.[at] || 0, difference = state.scale === "difference" && !own;
    const words = [`${difference ? "teacher − student " + signed(value) : percent(value)} at step ${state.step + 1}`];
    if (at >= prompt) words.push(`token ${at - prompt + 1} of the response`);
    if (/\bown\b/.test(column.base[at])) words.push(own ? "only in the teacher's context" : "only in the student's context: not compared");
    if (/\baround\b/.test(column.base[at])) words.push("words around the solution");
    span.title = words.join("; ");
  }

  // ---- moving ------------------------------------------------------------------------------------------------------
  function show(column, at) {
    if (column.panel.hidden || !column.spans[at]) return;
    if (!column.tops) measure(column);
    const area = column.areas.find((one) => one.box === column.spans[at].parentElement), place_ = column.tops[at], above = place_ - area.scroll;
    if (above >= 4 && above <= area.height - 30) return;
    area.box.scrollTop = place_ - 0.6 * area.height;
    area.scroll = Math.max(0, Math.min(area.box.scrollTop, place_));
  }
  const reveal = () => {
    show(columns.teacher, now.record.teacher.prompt + state.step);
    for (const name of ["projected", "student", "second"]) show(columns[name], now.record.student.prompt + state.step);
    if (!columns.teacher.solution.hidden && now.record.teacher.text) {
      const [begin, end] = now.record.teacher.text, row = now.values.full.teacher;
      let strongest = begin;
      for (let at = begin; at < end; at += 1) if (row[at] > row[strongest]) strongest = at;
      show(columns.teacher, strongest);
    }
  };
  function go(step, scroll = true) {
    if (!now) return;
    const next = Math.max(0, Math.min(now.steps - 1, step));
    if (next !== state.step) { state.step = next; draw(scroll); }
  }
  const setStage = (stage) => { state.stage = stage; place(); for (const column of Object.values(columns)) column.tops = null; drawCurves(); drawMap(); draw(true); };
  const stop = () => { clearInterval(state.playing); state.playing = 0; play.textContent = "▶ play"; };
  const toggle = () => {
    if (state.playing || !now) return stop();
    play.textContent = "❚❚ pause";
    if (state.step >= now.steps - 1) go(0);
    state.playing = setInterval(() => state.step >= now.steps - 1 ? stop() : go(state.step + 1), 160);
  };
  for (const column of Object.values(columns)) {
    let waiting = 0;
    for (const area of [column.text, column.solution].filter(Boolean)) {
      area.addEventListener("scroll", () => { if (!waiting) waiting = requestAnimationFrame(() => {
        waiting = 0;
        if (!now?.values || column.panel.hidden || !column.tops) return;
        const moved = column.areas.filter((one) => Math.abs(one.scroll - one.box.scrollTop) >= 1);
        for (const one of moved) one.scroll = one.box.scrollTop;
        if (moved.length) shade(column);   // else the step itself scrolled, and has shaded it
      }); });
      area.addEventListener("pointerover", (event) => {
        const { step, at } = event.target.dataset || {};
        hovered = at === undefined || !now ? null : [column, event.target];
        if (step !== undefined && !state.pinned && event.pointerType !== "touch") go(+step, false);
        if (hovered) tell(hovered);
      });
      area.addEventListener("pointerleave", () => { hovered = null; });
      area.addEventListener("click", (event) => {
        const { step } = event.target.dataset || {};
        if (step === undefined) return;
        state.pinned = !(state.pinned && +step === state.step);
        if (+step === state.step) draw(); else go(+step, false);
      });
    }
  }
  const drag = (event) => {
    if (!now || event.type === "pointermove" && (state.pinned ? !event.buttons : event.pointerType === "touch" && !event.buttons)) return;
    const area = curves.getBoundingClientRect();
    go(Math.round((event.clientX - area.left - LEFT) / (area.width - LEFT - RIGHT) * (now.steps - 1)));
  };
  curves.addEventListener("pointermove", drag);
  curves.addEventListener("pointerdown", drag);
  slide.addEventListener("input", () => go(+slide.value));
  choose.addEventListener("change", () => { stop(); open(+choose.value).catch(damaged); });
  for (const chosen of [layers, heads]) chosen.addEventListener("change", () => {
    if (root.dataset.ready !== "yes") return;   // a record is on its way, and with it other layers
    const layer = +layers.value, head = +heads.value, turn = opening += 1;
    load(now, layer, head).then((found) => {
      if (turn !== opening) return;
      Object.assign(now, found);
      Object.assign(state, { layer, head });
      drawCurves(); drawMap(); draw();
    }).catch(damaged);
  });
  scale.addEventListener("change", () => { state.scale = scale.value; draw(); });
  mapOf.addEventListener("change", () => { state.map = mapOf.value; if (now) drawMap(); });
  skip.addEventListener("change", () => { state.skip = skip.checked; draw(); if (now) drawMap(); });
  play.addEventListener("click", toggle);
  save.addEventListener("click", () => now && opasd.saveText("attention.csv", opasd.curvesCsv(now), "text/csv"));
  const parts = () => ({ state, now, columns, inSight, curveParts, percent, fine, split, scaleWords, both: state.stage < 0 });
  asSvg.addEventListener("click", () => now && opasd.saveText("attention.svg", opasd.slide(parts()), "image/svg+xml"));
  asPng.addEventListener("click", () => now && opasd.savePng("attention.png", opasd.slide(parts()), 1920, 1080, 1));
  link.addEventListener("click", () => {
    if (!now) return;
    const { record } = now, query = new URLSearchParams({ run: record.run ?? record.title ?? "", problem: record.number ?? state.record + 1, step: state.step + 1,
      layer: state.layer, head: state.head < 0 ? "mean" : state.head + 1, stage: state.stage < 0 ? BOTH : now.names[state.stage] });
    history.replaceState(null, "", "#look?" + query);
    navigator.clipboard?.writeText(location.href).then(() => { link.textContent = "copied"; setTimeout(() => { link.textContent = "link"; }, 1500); }, () => {});
  });
  wide.addEventListener("click", () => document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen?.());
  wide.hidden = !root.requestFullscreen;
  jumps.addEventListener("change", () => {
    const value = now && { div: (step) => now.students[lastStage()].divergence[step], rho: (step) => now.rho[step],
      gain: (step) => Math.abs(now.students[0].divergence[step] - now.students.at(-1).divergence[step]) }[jumps.value];
    if (value) go(best(value));
    jumps.value = "";
  });
  // On a page of its own all keys are the viewer's; in a report those typed over it, or in it while it is in sight.
  const isInSight = () => { const area = root.getBoundingClientRect(); return area.bottom > 0 && area.top < innerHeight; };
  const meant = (node) => alone || root.matches(":hover") || (root.contains(node) && isInSight());
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    if (target.closest("select, textarea, input:not([type=range], [type=checkbox])") || !meant(target)) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = { ArrowLeft: () => go(state.step - 1), ArrowRight: () => go(state.step + 1), Home: () => go(0), End: () => go(now.steps - 1),
      b: () => setStage((state.stage + 1) % now.names.length), s: () => now.names.length > 1 && setStage(-1), " ": toggle, Escape: () => { state.pinned = false; draw(); } };
    const act = keys[event.key] || keys[event.key.toLowerCase()];
    if (!act || !now || (event.key === " " && target.closest("button, summary, [type=checkbox]"))) return;
    event.preventDefault();
    act();
  });
  const relayout = (event) => {
    printing = event.type === "beforeprint" || matchMedia("print").matches;
    if (!now?.values) return;
    for (const column of Object.values(columns)) column.tops = null;
    drawCurves(); draw();
  };
  for (const name of ["resize", "beforeprint", "afterprint"]) addEventListener(name, relayout);
  matchMedia("print").addEventListener("change", relayout);
  function damaged(error) {
    now = null;
    for (const node of [badges, stages, curves, top, ...panels.flatMap((name) => [columns[name].text, columns[name].solution]).filter(Boolean)]) node.replaceChildren();
    for (const name of panels) columns[name].spans = [];
    line.replaceChildren("The attention record is damaged: " + error.message);
    root.dataset.ready = "damaged";
  }
  // #look?run=…&problem=…&step=…
  function follow() {
    const wanted = location.hash.startsWith("#look?") ? Object.fromEntries(new URLSearchParams(location.hash.slice(6))) : {};
    const score = (record, at) => (wanted.run === (record.run ?? record.title)) * 2 + (wanted.problem === String(record.number ?? at + 1));
    const at = wanted.problem === undefined ? 0 : records.reduce((found, record, place_) => score(record, place_) > score(records[found], found) ? place_ : found, 0);
    open(at, wanted).then(() => { if (wanted.step && !alone) root.scrollIntoView(); }).catch(damaged);
  }
  if (typeof DecompressionStream === "undefined") root.replaceChildren(make("p", { textContent: "This browser is too old for the attention viewer." }));
  else { follow(); addEventListener("hashchange", () => { if (location.hash.startsWith("#look?")) follow(); }); }
})();
