"use strict";
(() => {
  const data = (id) => { const node = document.getElementById(id); return node ? JSON.parse(node.textContent) : null; };
  const make = (tag, options = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), options);
    node.append(...children);
    return node;
  };
  const svgNode = (tag, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const shown = (value, percent) => percent ? (100 * value).toFixed(1) + " %"
    : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toPrecision(4)
    : value.toLocaleString("en", { maximumSignificantDigits: 5 });
  const save = (name, blob) => {
    const link = make("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  // As palette.dot: a colour, and another shape for each round of the colours.
  const dot = (run) => make("i", { className: `dot c${run % 8}` + (run < 8 ? "" : ` g${Math.min(3, Math.floor(run / 8))}`) });
  const saveText = (name, text, type) => save(name, new Blob([text], { type: type + ";charset=utf-8" }));

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

  // ---- which runs are shown ----------------------------------------------------------------------------------------
  const chips = [...document.querySelectorAll(".chip[data-run]")], every = document.getElementById("every-run");
  const isOn = (chip) => chip.getAttribute("aria-pressed") === "true";
  const setRun = (chip, on) => {
    chip.setAttribute("aria-pressed", String(on));
    for (const node of document.querySelectorAll(".run" + chip.dataset.run)) {
      if (node instanceof SVGElement) node.style.display = on ? "" : "none"; else node.hidden = !on;
    }
    if (every) every.textContent = chips.some(isOn) ? "hide all" : "show all";
  };
  for (const chip of chips) chip.addEventListener("click", () => setRun(chip, !isOn(chip)));
  every?.addEventListener("click", () => {
    const on = !chips.some(isOn);
    for (const chip of chips) setRun(chip, on);
  });
  const hidden = (run) => document.querySelector(`.chip[data-run="${run}"]`)?.getAttribute("aria-pressed") === "false";

  // ---- figures: crosshair and downloads ----------------------------------------------------------------------------
  for (const figure of data("figure-data") || []) {
    const node = document.getElementById("fig-" + figure.id), picture = node && node.querySelector("svg");
    if (!picture) continue;
    const chart = node.querySelector(".chart"), tip = make("div", { className: "tip", hidden: true });
    const [left, right, top, bottom] = figure.plot;
    const cross = svgNode("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
    picture.append(cross);
    chart.append(tip);
    const across = (x) => left + (x - figure.x[0]) / (figure.x[1] - figure.x[0]) * (right - left);
    const xs = [...new Set(figure.series.flatMap((one) => one.p.map((point) => point[0])))].sort((a, b) => a - b);
    const leave = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
    const move = (event) => {
      const box = picture.getBoundingClientRect(), scale = box.width / picture.viewBox.baseVal.width;
      const place = (event.clientX - box.left) / scale;
      if (place < left - 12 || place > right + 12 || !xs.length) return leave();
      const x = xs.reduce((best, one) => Math.abs(across(one) - place) < Math.abs(across(best) - place) ? one : best);
      const rows = figure.series.filter((one) => !one.f && !hidden(one.r)).flatMap((one) => {
        const at = one.p.findIndex((point) => point[0] === x);
        if (at < 0) return [];
        const band = one.lo ? ` [${shown(one.lo[at], figure.pct)}, ${shown(one.hi[at], figure.pct)}]` : "";
        return [[one, one.p[at][1], band]];
      }).sort((a, b) => b[1] - a[1]);
      if (!rows.length) return leave();
      const head = figure.cat.length ? figure.cat[x] || "" : figure.xl + " " + shown(x, false);
      tip.replaceChildren(make("b", { textContent: head }), ...rows.slice(0, 12).map(([one, y, band]) => make("div", {},
        dot(one.r), make("bdi", { textContent: one.n }),
        make("span", { textContent: shown(y, figure.pct) + band }))));
      tip.hidden = false;
      const at = across(x), pixel = at * scale;
      cross.setAttribute("x1", at); cross.setAttribute("x2", at);
      cross.setAttribute("visibility", figure.kind === "line" ? "visible" : "hidden");
      const room = box.width - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(room, pixel > box.width / 2 ? pixel - tip.offsetWidth - 14 : pixel + 14)) + "px";
      tip.style.top = top * scale + 4 + "px";
    };
    picture.addEventListener("pointermove", move);
    picture.addEventListener("pointerdown", move);
    picture.addEventListener("pointerleave", leave);
    node.querySelector(".tools").addEventListener("click", (event) => {
      const kind = event.target.dataset.get;
      if (kind === "csv") saveText(figure.id + ".csv", csv(figure), "text/csv");
      if (kind === "svg") saveText(figure.id + ".svg", alone(picture, node), "image/svg+xml");
      if (kind === "png") png(figure.id, alone(picture, node), picture);
    });
  }
  function csv(figure) {
    const quote = (text) => /[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : String(text);
    const band = figure.series.some((one) => one.lo), size = figure.series.some((one) => one.s);
    const plain = (text) => /^[=@\t\r]|^[-+](?![\d.])/.test(text) ? "'" + text : text; // as text.no_formula
    const rows = [["series", plain(figure.xl), plain(figure.yl), ...(band ? ["low", "high"] : []), ...(size ? ["size"] : [])]];
    for (const one of figure.series) one.p.forEach(([x, y], at) => rows.push([plain(one.n) + (one.f ? " (raw)" : ""),
      figure.cat.length ? plain(figure.cat[x]) : x, y, ...(band ? [one.lo?.[at] ?? "", one.hi?.[at] ?? ""] : []),
      ...(size ? [one.s?.[at] ?? ""] : [])]));
    return rows.map((row) => row.map(quote).join(",")).join("\n") + "\n";
  }
  function alone(picture, node) {
    const copy = picture.cloneNode(true), box = picture.viewBox.baseVal, style = getComputedStyle(root);
    copy.querySelector(".cross")?.remove();
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("viewBox", `0 -34 ${box.width} ${box.height + 34}`);
    copy.setAttribute("width", box.width);
    copy.setAttribute("height", box.height + 34);
    const rules = data("chart-style").replace(/var\((--\w+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    const title = svgNode("text", { class: "title", x: 16, y: -8 });
    title.textContent = node.querySelector("figcaption").textContent;
    copy.prepend(Object.assign(svgNode("style", {}), { textContent: rules }),
      svgNode("rect", { class: "back", y: -34, width: box.width, height: box.height + 34 }), title);
    return new XMLSerializer().serializeToString(copy);
  }
  function png(name, text, picture) {
    const image = new Image(), box = picture.viewBox.baseVal, scale = 3;
    image.onload = () => {
      const canvas = make("canvas", { width: box.width * scale, height: (box.height + 34) * scale });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob((blob) => save(name + ".png", blob), "image/png");
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
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
      const rows = [...table.tBodies[0].rows], parts = [[]];
      for (const row of rows) {
        if (row.classList.contains("group")) parts.push([row], []);
        else if (row.classList.contains("rule")) parts.push([], [row]);
        else if (parts.at(-1)[0]?.classList.contains("rule")) parts.at(-1).push(row);
        else parts.at(-1).push(row);
      }
      for (const part of parts) {
        const fixed = part[0]?.classList.contains("group") || part[0]?.classList.contains("rule");
        table.tBodies[0].append(...(fixed ? part : part.sort(compare)));
      }
    });
  }
  const texts = data("table-data") || {};
  document.addEventListener("click", (event) => {
    const { table, as } = event.target.dataset || {};
    if (table && as) saveText(`${table}.${as}`, texts[table][as], { csv: "text/csv", md: "text/markdown",
      tex: "text/plain" }[as]);
  });

  // ---- samples -----------------------------------------------------------------------------------------------------
  const explorer = document.getElementById("explorer");
  if (explorer) (window.requestIdleCallback || setTimeout)(() => explore(data("sample-data")));
  function explore(found) {
    const { runs, sets, questions, rows } = found, page = 20, long = 2400;
    const field = (name) => explorer.querySelector(`[name=${name}]`);
    const list = explorer.querySelector(".list"), count = explorer.querySelector(".count"), more = explorer.querySelector(".more");
    let matches = [], at = 0;
    const highlight = (text, needle) => {
      const pre = make("pre", { dir: "auto" });
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
      const head = make("div", { className: "line" }, make("b", {}, dot(run),
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
        all.addEventListener("click", () => { part.replaceWith(whole()); all.remove(); });
        node.append(part, all);
      }
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
