"use strict";
(() => {
  const { data, make, svgNode, saveText, savePng, dot } = opasd;
  const shown = (value, percent) => percent ? (100 * value).toFixed(1) + " %"
    : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toPrecision(4)
    : value.toLocaleString("en", { maximumSignificantDigits: 5 });

  // ---- theme -------------------------------------------------------------------------------------------------------
  const root = document.documentElement, themes = ["auto", "light", "dark"];
  const remember = (name, value) => { try { return value === undefined ? localStorage.getItem(name)
    : localStorage.setItem(name, value); } catch { return null; } };
  const button = document.getElementById("theme");
  const setTheme = (theme) => {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    button.textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[theme];
    button.dataset.now = theme;
  };
  setTheme(themes.includes(remember("opasd-theme")) ? remember("opasd-theme") : "auto");
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.dataset.now) + 1) % themes.length];
    remember("opasd-theme", next);
    setTheme(next);
  });

  // ---- which methods are shown -------------------------------------------------------------------------------------
  const chips = [...document.querySelectorAll(".chip[data-run]")], every = document.getElementById("every-run");
  const hidden = new Set(), drawings = [];
  const isOn = (chip) => chip.getAttribute("aria-pressed") === "true";
  const setMethods = (changed, on) => {
    for (const chip of changed) {
      chip.setAttribute("aria-pressed", String(on));
      if (on) hidden.delete(+chip.dataset.run); else hidden.add(+chip.dataset.run);
      for (const node of document.querySelectorAll(".run" + chip.dataset.run)) {
        if (!(node instanceof SVGElement)) node.hidden = !on || (node.matches(".sub") && !isOpen(node));
      }
    }
    if (every) every.textContent = chips.some(isOn) ? "hide all" : "show all";
    for (const redraw of drawings) redraw();
  };
  for (const chip of chips) chip.addEventListener("click", () => setMethods([chip], !isOn(chip)));
  every?.addEventListener("click", () => setMethods(chips, !chips.some(isOn)));

  // ---- rows that fold out ------------------------------------------------------------------------------------------
  const parentOf = (row) => { while (row?.matches(".sub")) row = row.previousElementSibling; return row; };
  const isOpen = (row) => parentOf(row)?.querySelector(".fold")?.getAttribute("aria-expanded") === "true";
  const below = (row) => { const rows = []; while ((row = row.nextElementSibling)?.matches(".sub")) rows.push(row); return rows; };
  document.addEventListener("click", (event) => {
    const fold = event.target.closest?.(".fold");
    if (!fold) return;
    const open = fold.getAttribute("aria-expanded") !== "true";
    fold.setAttribute("aria-expanded", String(open));
    for (const row of below(fold.closest("tr"))) row.hidden = !open;
  });

  // ---- figures: redrawn to their width and the methods shown, crosshair, downloads ----------------------------------
  for (const whole of data("figure-data") || []) {
    const node = document.getElementById("fig-" + whole.id), picture = node && node.querySelector("svg");
    if (!picture) continue;
    const chart = node.querySelector(".chart"), tip = make("div", { className: "tip", hidden: true });
    const cross = svgNode("line", { class: "cross", visibility: "hidden" });
    let figure = whole, frame = null, drawnAs = "560";
    chart.append(tip);
    const redraw = () => {
      const width = matchMedia("print").matches ? 560 : Math.round(Math.max(280, Math.min(chart.clientWidth || 560, 760)));
      const as = [width, ...whole.series.map((own) => own.r).filter((slot) => hidden.has(slot))].join();
      figure = opasd.visible(whole, hidden);
      const drawn = opasd.draw(figure, width);
      frame = drawn.frame;
      if (as !== drawnAs) {
        picture.innerHTML = drawn.content;
        picture.setAttribute("viewBox", `0 0 ${width} ${drawn.height}`);
        drawnAs = as;
      }
      picture.append(cross);
    };
    redraw();
    drawings.push(redraw);
    const leave = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
    const rowsAt = (place, height) => {
      const drawn = figure.series.filter((own) => !own.f || figure.kind === "forest");
      const value = (own, at) => {
        const [x, y] = own.p[at], along = figure.kind === "forest" ? x : y;
        const pair = own.lo ? ` [${shown(own.lo[at], figure.pct)}, ${shown(own.hi[at], figure.pct)}]` : "";
        return [own, along, shown(along, figure.pct) + pair];
      };
      if (figure.kind === "scatter" || figure.kind === "forest") {
        // A point is known by where it is in both directions; several at one place are all named.
        const points = drawn.flatMap((own) => own.p.map(([x, y], at) => [own, at, frame.across(x), frame.down(y)]));
        const far = ([, , x, y]) => figure.kind === "forest" ? Math.abs(y - height) : Math.hypot(x - place, y - height);
        const nearest = Math.min(...points.map(far));
        const found = points.filter((point) => far(point) <= nearest + 0.05);
        if (!found.length || nearest > 40) return null;
        const [own, at] = found[0];
        const head = figure.kind === "forest" ? figure.cat[own.p[at][1]] : figure.xl + " " + shown(own.p[at][0], false);
        return [head, found[0][2], found.map(([one, where]) => value(one, where))];
      }
      const xs = [...new Set(drawn.flatMap((own) => own.p.map((point) => point[0])))];
      if (!xs.length) return null;
      const x = xs.reduce((best, one) => Math.abs(frame.across(one) - place) < Math.abs(frame.across(best) - place) ? one : best);
      const rows = drawn.flatMap((own) => {
        const at = own.p.findIndex((point) => point[0] === x);
        return at < 0 ? [] : [value(own, at)];
      });
      const head = figure.cat.length ? figure.cat[x] || "" : figure.xl + " " + shown(x, false);
      return [head, frame.across(x), rows.sort((a, b) => b[1] - a[1])];
    };
    const move = (event) => {
      const box = picture.getBoundingClientRect(), scale = box.width / picture.viewBox.baseVal.width;
      const place = (event.clientX - box.left) / scale, height = (event.clientY - box.top) / scale;
      const found = place < frame.left - 12 || place > frame.right + 12 ? null : rowsAt(place, height);
      if (!found?.[2].length) return leave();
      const [head, at, rows] = found;
      tip.replaceChildren(make("b", { textContent: head }), ...rows.slice(0, 12).map(([own, , words]) => make("div", {},
        dot(own.r), make("bdi", { textContent: own.n }), make("span", { textContent: words }))));
      tip.hidden = false;
      for (const [name, value] of [["x1", at], ["x2", at], ["y1", frame.top], ["y2", frame.bottom]]) cross.setAttribute(name, value);
      cross.setAttribute("visibility", figure.kind === "line" ? "visible" : "hidden");
      const pixel = at * scale, room = box.width - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(room, pixel > box.width / 2 ? pixel - tip.offsetWidth - 14 : pixel + 14)) + "px";
      tip.style.top = frame.top * scale + 4 + "px";
    };
    picture.addEventListener("pointermove", move);
    picture.addEventListener("pointerdown", move);
    picture.addEventListener("pointerleave", leave);
    node.querySelector(".tools").addEventListener("click", (event) => {
      const kind = event.target.dataset.get;
      if (kind === "csv") saveText(figure.id + ".csv", csv(figure), "text/csv");
      if (kind === "svg") saveText(figure.id + ".svg", opasd.standalone(figure)[0], "image/svg+xml");
      if (kind === "png") savePng(figure.id + ".png", ...opasd.standalone(figure), 3);
    });
  }
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { for (const redraw of drawings) redraw(); }, 80); });
  for (const when of ["beforeprint", "afterprint"]) addEventListener(when, () => { for (const redraw of drawings) redraw(); });
  function csv(figure) {
    const quote = (text) => /[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : String(text);
    const band = figure.series.some((one) => one.lo), size = figure.series.some((one) => one.s);
    const plain = (text) => /^[=@\t\r]|^[-+](?![\d.])/.test(text) ? "'" + text : text; // as text.no_formula
    const rows = [["series", plain(figure.xl), plain(figure.yl), ...(band ? ["low", "high"] : []), ...(size ? ["size"] : [])]];
    for (const one of figure.series) one.p.forEach(([x, y], at) => rows.push([plain(one.n),
      figure.kind === "bar" && figure.cat.length ? plain(figure.cat[x]) : x, figure.kind === "forest" ? plain(figure.cat[y]) : y, ...(band ? [one.lo?.[at] ?? "", one.hi?.[at] ?? ""] : []),
      ...(size ? [one.s?.[at] ?? ""] : [])]));
    return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
  }

  // ---- tables ------------------------------------------------------------------------------------------------------
  for (const table of document.querySelectorAll("table.sortable")) {
    table.tHead.addEventListener("click", (event) => {
      const head = event.target.closest("th");
      if (!head) return;
      const column = head.cellIndex, down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => { const cell = row.cells[column]; return cell.dataset.v === undefined ? null : +cell.dataset.v; };
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null && y === null) {
          return a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true })
            * (down ? -1 : 1);
        }
        if (x === null || y === null) return x === null ? 1 : -1;
        return down ? y - x : x - y;
      };
      const folded = new Map([...table.tBodies[0].rows].map((row) => [row, below(row)]));
      const rows = [...table.tBodies[0].rows].filter((row) => !row.matches(".sub")), parts = [[]];
      for (const row of rows) {
        if (row.classList.contains("group")) parts.push([row], []);
        else if (row.classList.contains("rule")) parts.push([], [row]);
        else if (parts.at(-1)[0]?.classList.contains("rule")) parts.at(-1).push(row);
        else parts.at(-1).push(row);
      }
      for (const part of parts) {
        const fixed = part[0]?.classList.contains("group") || part[0]?.classList.contains("rule");
        table.tBodies[0].append(...(fixed ? part : part.sort(compare)).flatMap((row) => [row, ...folded.get(row)]));
      }
    });
  }
  const texts = data("table-data") || {};
  document.addEventListener("click", (event) => {
    const { table, as } = event.target.dataset || {};
    if (table && as) saveText(`${table}.${as}`, texts[table][as], { csv: "text/csv", md: "text/markdown",
      tex: "text/plain" }[as]);
  });

  // A text that scrolls can be reached by the keyboard.
  const reachable = new ResizeObserver((all) => { for (const { target } of all) {
    if (target.scrollHeight > target.clientHeight + 1) target.tabIndex = 0; else target.removeAttribute("tabindex");
  } });
  for (const pre of document.querySelectorAll(".pairs pre")) reachable.observe(pre);

  // ---- samples -----------------------------------------------------------------------------------------------------
  const explorer = document.getElementById("explorer");
  if (explorer) (window.requestIdleCallback || setTimeout)(() => explore(data("sample-data")));
  function explore(found) {
    const { runs, slots, sets, questions, rows } = found, page = 20, long = 2400;
    const field = (name) => explorer.querySelector(`[name=${name}]`);
    const list = explorer.querySelector(".list"), count = explorer.querySelector(".count"), more = explorer.querySelector(".more");
    let matches = [], at = 0;
    const highlight = (text, needle) => {
      const pre = make("pre", { dir: "auto" });
      reachable.observe(pre);
      if (!needle) { pre.textContent = text; return pre; }
      const low = text.toLowerCase();
      let from = 0, hits = 0;
      // Lower case may be longer than the text (İ): then places would not fit, and nothing is marked.
      for (let hit = low.indexOf(needle); hit >= 0 && hits < 200 && low.length === text.length;
        hit = low.indexOf(needle, from)) {
        pre.append(text.slice(from, hit), make("mark", { textContent: text.slice(hit, hit + needle.length) }));
        from = hit + needle.length; hits += 1;
      }
      pre.append(text.slice(from));
      return pre;
    };
    const badge = (text, kind) => make("span", { className: "badge " + kind, textContent: text });
    const card = ([run, set, step, question, number, verdict, cut, tokens, text, left, read], needle) => {
      const head = make("div", { className: "line" }, make("b", {}, dot(slots[run]),
        make("bdi", { textContent: runs[run] })), make("span", { className: "soft small", textContent: sets[set]
        + (step === null ? "" : `, step ${step}`) + (number ? `, sample ${number}` : "") }));
      head.append(verdict === 1 ? badge("right", "good") : verdict === 0 ? badge("wrong", "bad") : badge("not graded", ""));
      if (cut) head.append(badge("truncated", "warn"));
      head.append(make("span", { className: "soft small", textContent: tokens.toLocaleString("en") + " tokens" }));
      if (read) head.append(make("span", { className: "soft small" }, "answer ", make("bdi", { textContent: read })));
      const [asked, answer] = questions[question];
      const about = make("details", {}, make("summary", { className: "small soft", dir: "auto",
        textContent: asked.length > 160 ? asked.slice(0, 160) + "…" : asked || "question not on record" }),
        highlight(asked, needle));
      if (answer) about.append(make("p", { className: "small", dir: "auto", textContent: "Known answer: " + answer }));
      const node = make("article", { className: "card" }, head, about);
      const whole = () => highlight(text, needle);
      if (text.length <= long) node.append(whole());
      else {
        const part = highlight(text.slice(0, long), needle);
        const all = make("button", { type: "button", className: "tool",
          textContent: `show all ${text.length.toLocaleString("en")} characters` });
        all.addEventListener("click", () => { const rest = whole(); part.replaceWith(rest); if (!needle) opasd.typeset(rest); all.remove(); });
        node.append(part, all);
      }
      if (!needle) opasd.typeset(node);
      if (left) node.append(make("p", { className: "small soft", textContent:
        `${left.toLocaleString("en")} characters in the middle are only in the side files.` }));
      return node;
    };
    const show = () => {
      const needle = field("search").value.trim().toLowerCase();
      list.append(...matches.slice(at, at + page).map((row) => card(row, needle)));
      at += page;
      more.hidden = at >= matches.length;
    };
    const search = () => {
      const needle = field("search").value.trim().toLowerCase(), run = field("run").value, set = field("set").value;
      const verdict = field("verdict").value, order = field("order").value;
      matches = rows.filter((row) => (run === "" || row[0] === +run) && (set === "" || row[1] === +set)
        && (verdict === "" || (verdict === "truncated" ? row[6] : row[5] === +verdict))
        && (!needle || row[8].toLowerCase().includes(needle) || questions[row[3]][0].toLowerCase().includes(needle)));
      if (order === "long") matches.sort((a, b) => b[7] - a[7]);
      if (order === "short") matches.sort((a, b) => a[7] - b[7]);
      if (order === "late") matches.sort((a, b) => (b[2] ?? 1e9) - (a[2] ?? 1e9));
      count.textContent = `${matches.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} samples`;
      list.replaceChildren();
      at = 0;
      show();
    };
    const options = (name, values) => field(name).append(...values.map((text, value) =>
      make("option", { value, textContent: text.length > 60 ? text.slice(0, 60) + "…" : text })));
    options("run", runs);
    options("set", sets);
    let timer = 0;
    explorer.querySelector(".filters").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, 120); });
    more.addEventListener("click", show);
    search();
    explorer.dataset.ready = "yes";
  }
})();
