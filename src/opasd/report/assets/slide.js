"use strict";
// The attention viewer's present view as a picture of its own, 1920 × 1080, with caption: for a slide.
opasd.slide = ({ state, now, columns, inSight, curveParts, percent, fine, split, scaleWords, both }) => {
  const WIDE = 1920, HIGH = 1080, EDGE = 48, SIZE = 20, LINE = 30, GRAPH = 1.35, MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace";
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const rgb = (name) => `rgb(${colour(name).split(/\s+/).join(",")})`;
  const safe = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`).replace(/[\u0000-\u0008\u000b-\u001f\ud800-\udfff\ufffe\uffff]/g, "\ufffd");
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${SIZE}px ${MONO}`;
  const { record } = now, { step } = state, out = [];
  const words = (text, x, y, options = "") => out.push(`<text x="${x}" y="${y}" ${options}>${safe(text)}</text>`);
  const cut = (text, room, size, weight = 400) => { pen.font = `${weight} ${size}px system-ui, sans-serif`; let short = text;
    while (short.length > 1 && pen.measureText(short).width > room) short = short.slice(0, -2).trimEnd() + "…"; pen.font = `${SIZE}px ${MONO}`; return short; };
  const when = now.names.length > 1 ? (both ? "before and after training" : `${now.names[state.stage]} training`) : "";
  words(cut(record.title || "attention", WIDE - 2 * EDGE, 34), EDGE, 62, 'class="h"');
  const token = JSON.stringify(record.student.tokens[record.student.prompt + step] ?? "").slice(1, -1) || "·";
  const divergences = now.names.map((name, at) => `${now.names.length > 1 ? name + " " : ""}${fine(now.students[at].divergence[step])}`).join(", ");
  words(cut(`step ${step + 1} of ${now.steps}, predicts “${token}” · ρ ${percent(now.rho[step])}${now.rhoText ? ` (${split(step)})` : ""} · ${now.divergence} ${divergences}`, WIDE - 2 * EDGE, 23), EDGE, 102, 'class="s"');
  // The curves, as on the page.
  const graph = document.createElementNS("http://www.w3.org/2000/svg", "g");
  const across = (WIDE - 2 * EDGE) / GRAPH, x = (46 + (now.steps < 2 ? 0.5 : step / (now.steps - 1)) * (across - 56)).toFixed(1);
  graph.append(...curveParts(across, 150));
  out.push(`<g transform="translate(${EDGE} 114) scale(${GRAPH})" class="v-curves">${graph.innerHTML}`
    + `<line x1="${x}" x2="${x}" y1="16" y2="134" stroke="${colour("--ink")}" stroke-width="1.6"/></g>`);
  const shown = Object.values(columns).filter((column) => !column.panel.hidden), gap = 22, top = 334, bottom = HIGH - 96;
  const width = (WIDE - 2 * EDGE - gap * (shown.length - 1)) / shown.length;
  shown.forEach((column, number) => {
    const left = EDGE + number * (width + gap), inner = width - 28;
    out.push(`<rect x="${left}" y="${top}" width="${width}" height="${bottom - top}" rx="14" fill="${colour("--card")}" stroke="${colour("--line")}"/>`,
      `<rect x="${left + 14}" y="${top + 15}" width="16" height="16" rx="4" fill="${rgb(`--${column.hue}`)}"/>`);
    words(column.heading.textContent, left + 40, top + 31, 'class="p"');
    let y = top + 66, x_ = 0, begin = y;
    const write = (spans, last) => {
      for (const span of spans) {
        const background = getComputedStyle(span).backgroundColor, current = span.classList.contains("now"), later = span.classList.contains("later");
        for (const piece of span.textContent.split(/(\n)/)) {
          if (piece === "\n") { x_ = 0; y += LINE; continue; }
          for (let rest = piece; rest;) {
            if (x_ === 0 && y > begin) rest = rest.replace(/^ +/, "");   // a line does not begin with the space before its word
            if (!rest) break;
            let fits = rest;
            while (fits.length > 1 && x_ + pen.measureText(fits).width > inner && (x_ === 0 || pen.measureText(rest).width > inner)) fits = fits.slice(0, -1);
            const wide = pen.measureText(fits).width;
            if (x_ && x_ + wide > inner) { x_ = 0; y += LINE; continue; }
            if (y > last) return;
            const at = (left + 14 + x_).toFixed(1);
            if (!/, 0\)$|transparent/.test(background)) out.push(`<rect x="${at}" y="${y - 20}" width="${wide.toFixed(1)}" height="${LINE - 3}" rx="3" fill="${background}"/>`);
            if (current) out.push(`<rect x="${at}" y="${y - 20}" width="${Math.max(wide, 6).toFixed(1)}" height="${LINE - 3}" rx="3" fill="none" stroke="${colour("--ink")}" stroke-width="2.5"/>`);
            out.push(`<text class="${later ? "t l" : "t"}" x="${at}" y="${y}" xml:space="preserve">${safe(fits)}</text>`);
            x_ += wide;
            rest = rest.slice(fits.length);
          }
        }
      }
    };
    const inside = inSight(column), solution = inside.filter((span) => span.parentElement === column.solution), others = inside.filter((span) => span.parentElement !== column.solution);
    if (solution.length) {
      words(cut(column.label.textContent, inner, 17, 600) === column.label.textContent ? column.label.textContent : column.label.textContent.split(";")[0], left + 14, y - 6, 'class="n"');
      y += 22;
      const from = y - 22;
      begin = y;
      write(solution, y + 8 * LINE);
      out.push(`<rect x="${left + 4}" y="${from}" width="4" height="${Math.max(20, Math.min(y, from + 9 * LINE) - from)}" fill="${rgb("--teacher")}"/>`);
      y = Math.min(y, from + 22 + 8 * LINE) + LINE + 12;
      x_ = 0;
    }
    begin = y;
    write(others, bottom - 14);
  });
  const where = `${state.layer === 1 ? "Last layer" : `${state.layer}. layer from the end`}, ${state.head < 0 ? "mean of heads" : `head ${state.head + 1}`}`;
  const shade = state.scale === "difference" ? "Shades: teacher − student" : `Shades: ${state.scale}, full at ${scaleWords(now.values.top)}`;
  words(cut(`Where the teacher looks with the solution in view, the same projected onto what the student sees, and where the student looks${when ? ", " + when : ""}.`, WIDE - 2 * EDGE, 21), EDGE, HIGH - 56, 'class="c"');
  words(cut(`${where}. ${shade}. ${record.model || ""}`, WIDE - 2 * EDGE, 21), EDGE, HIGH - 26, 'class="c"');
  const rules = `text{font-family:system-ui,'Segoe UI',Helvetica,Arial,'Liberation Sans','DejaVu Sans','Noto Sans',sans-serif;fill:${colour("--ink")}}.h{font-size:34px;font-weight:650}.s{font-size:23px}`
    + `.p{font-size:22px;font-weight:600}.n{font-size:17px;font-weight:600}.c{font-size:21px;fill:${colour("--soft")}}.t{font-family:${MONO};font-size:${SIZE}px}.l{fill:${colour("--soft")}}`
    + `.v-curves text{font-size:13px;fill:${colour("--soft")}}.v-curves path{fill:none;stroke-width:1.9}.v-curves .v-rho{stroke:${rgb("--teacher")}}`
    + `.v-curves .v-area{fill:${rgb("--teacher")};fill-opacity:.28}.v-curves .v-div{stroke:${rgb("--student")}}.v-curves .v-other{stroke:${colour("--soft")};stroke-dasharray:5 4}.v-base{stroke:${colour("--line")}}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDE} ${HIGH}" width="${WIDE}" height="${HIGH}"><style>${rules}</style>`
    + `<rect width="${WIDE}" height="${HIGH}" fill="${colour("--back")}"/>${out.join("")}</svg>`;
};
// The curves along the trajectory, with their tokens.
opasd.curvesCsv = (now) => {
    const { record } = now, quote = (text) => /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const rows = [["step", "token", "rho", ...(now.rhoText ? ["rho on its text"] : []), ...now.names.map((name) => `divergence ${name}`)]];
    const series = [now.rho, ...(now.rhoText ? [now.rhoText] : []), ...now.students.map((one) => one.divergence)];
    for (let step = 0; step < now.steps; step += 1) {
      const token = record.student.tokens[record.student.prompt + step] ?? "";
      rows.push([String(step + 1), /^[=@+\-\t\r]/.test(token) ? "'" + token : token, ...series.map((one) => String(one[step]))]);
    }
  return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
};
