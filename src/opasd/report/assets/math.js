"use strict";
// TeX in questions and answers as MathML, which browsers draw themselves. What is not understood stays as it was written.
(() => {
  const NS = "http://www.w3.org/1998/Math/MathML", LONGEST = 3000, DEEPEST = 40;
  const node = (tag, ...children) => { const made = document.createElementNS(NS, tag); made.append(...children); return made; };
  const words = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => { const at = pair.indexOf(":");
    return [pair.slice(0, at), pair.slice(at + 1)]; }));
  const LETTERS = words(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ
    lambda:λ mu:μ nu:ν xi:ξ pi:π rho:ρ sigma:σ tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ
    Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Phi:Φ Psi:Ψ Omega:Ω infty:∞ emptyset:∅ varnothing:∅ ell:ℓ hbar:ℏ partial:∂ nabla:∇ angle:∠
    triangle:△ square:□ circ:∘ degree:° prime:′ dots:… ldots:… cdots:⋯ vdots:⋮ ddots:⋱ forall:∀ exists:∃ Re:ℜ Im:ℑ aleph:ℵ`);
  const SIGNS = words(`cdot:⋅ times:× div:÷ pm:± mp:∓ ast:∗ star:⋆ le:≤ leq:≤ leqslant:≤ ge:≥ geq:≥ geqslant:≥ ne:≠ neq:≠
    equiv:≡ approx:≈ sim:∼ cong:≅ propto:∝ ll:≪ gg:≫ in:∈ notin:∉ ni:∋ subset:⊂ subseteq:⊆ supset:⊃ supseteq:⊇ cup:∪ cap:∩
    setminus:∖ land:∧ wedge:∧ lor:∨ vee:∨ neg:¬ lnot:¬ to:→ rightarrow:→ leftarrow:← leftrightarrow:↔ Rightarrow:⇒ implies:⟹
    Leftarrow:⇐ iff:⟺ Leftrightarrow:⇔ mapsto:↦ longrightarrow:⟶ uparrow:↑ downarrow:↓ mid:∣ nmid:∤ parallel:∥ perp:⊥ sum:∑
    prod:∏ int:∫ iint:∬ oint:∮ bigcup:⋃ bigcap:⋂ oplus:⊕ otimes:⊗ therefore:∴ because:∵ colon:: lbrace:{ rbrace:} langle:⟨
    rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ vert:| Vert:‖ lvert:| rvert:| backslash:\\ bullet:∙ models:⊨ vdash:⊢`);
  const LIMITS = new Set(["sum", "prod", "bigcup", "bigcap", "lim", "max", "min", "sup", "inf", "gcd", "limsup", "liminf"]);
  const NAMES = new Set(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp lim max min sup inf gcd lcm det
    dim ker deg arg mod Pr hom limsup liminf`.split(/\s+/));
  const SPACES = { ",": "0.17em", ":": "0.22em", ";": "0.28em", " ": "0.25em", quad: "1em", qquad: "2em", "!": "0em", enspace: "0.5em",
    "~": "0.25em", thinspace: "0.17em" };
  const FONTS = { mathrm: "normal", mathbf: "bold", mathit: "italic", mathbb: "double-struck", mathcal: "script", boldsymbol: "bold",
    mathsf: "sans-serif", mathfrak: "fraktur", bm: "bold", rm: "normal" };
  const ACCENTS = { overline: "‾", bar: "‾", hat: "^", widehat: "^", vec: "→", overrightarrow: "→", tilde: "~", widetilde: "~", dot: "˙",
    ddot: "¨", overbrace: "⏞" };
  const NOTHING = new Set(["displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "left", "right", "big", "Big", "bigg", "Bigg",
    "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "middle", "nonumber", "hfill", "phantom"]);
  const TABLES = { matrix: "", pmatrix: "()", bmatrix: "[]", vmatrix: "||", Vmatrix: "‖‖", cases: "{", aligned: "", align: "", array: "",
    gathered: "", split: "", smallmatrix: "" };
  const CODES = { "double-struck": [0x1d538, 0x1d552, 0x1d7d8], bold: [0x1d400, 0x1d41a, 0x1d7ce], script: [0x1d49c, 0x1d4b6, 0],
    fraktur: [0x1d504, 0x1d51e, 0], "sans-serif": [0x1d5a0, 0x1d5ba, 0x1d7e2] };
  const HOLES = { "double-struck": { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }, script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ",
    I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" }, fraktur: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" } };
  const styled = (text, font) => !CODES[font] ? text : [...text].map((letter) => {
    const [upper, lower, digit] = CODES[font], code = letter.codePointAt(0);
    if (HOLES[font]?.[letter]) return HOLES[font][letter];
    if (/[A-Z]/.test(letter)) return String.fromCodePoint(upper + code - 65);
    if (/[a-z]/.test(letter)) return String.fromCodePoint(lower + code - 97);
    return /\d/.test(letter) && digit ? String.fromCodePoint(digit + code - 48) : letter;
  }).join("");

  function parse(source) {
    const tokens = source.match(/\\[A-Za-z]+\*?|\\[\s\S]|\d+(?:\.\d+)?|\s+|[\s\S]/gu) || [];
    let at = 0, depth = 0;
    const fail = () => { throw new SyntaxError("not understood"); };
    const blank = () => { while (at < tokens.length && /^\s+$/.test(tokens[at])) at += 1; };
    const raw = () => {   // the text of {…}, as written
      blank();
      if (tokens[at] !== "{") return tokens[at++] ?? fail();
      let open = 1, text = "";
      for (at += 1; open; at += 1) {
        if (at >= tokens.length) fail();
        if (tokens[at] === "{") open += 1;
        if (tokens[at] === "}" && !--open) break;
        text += tokens[at];
      }
      at += 1;
      return text;
    };
    const group = () => {
      blank();
      if (/^\d./.test(tokens[at] ?? "")) {   // x^23 is x²3
        const made = node("mn", tokens[at][0]);
        tokens[at] = tokens[at].slice(1);
        return made;
      }
      if (tokens[at] !== "{") return atom(tokens[at++] ?? fail());
      at += 1;
      const inner = row((token) => token === "}");
      at += 1;
      return inner;
    };
    const text = (content) => { const made = node("mtext"); made.textContent = content.replace(/\\([$%&#_{}])/g, "$1").replace(/^\s|\s$/g, "\u00a0"); return made; };
    const sign = (content) => { const made = node("mo"); made.textContent = content; return made; };
    const name = (content, upright) => { const made = node("mi"); made.textContent = content;
      if (upright) made.setAttribute("mathvariant", "normal"); return made; };
    const space = (width) => { const made = node("mspace"); made.setAttribute("width", width); return made; };
    function table(kind) {
      const fence = TABLES[kind], rows = [[]];
      if (kind === "array") raw();
      for (;;) {
        rows.at(-1).push(node("mtd", row((token) => ["&", "\\\\", "\\cr", "\\end"].includes(token))));
        const token = tokens[at++] ?? fail();
        if (token === "\\end") { raw(); break; }
        if (token !== "&") rows.push([]);
      }
      const made = node("mtable", ...rows.filter((cells) => cells.length > 1 || cells[0]?.textContent).map((cells) => node("mtr", ...cells)));
      if (/align|split|cases/.test(kind)) made.setAttribute("columnalign", kind === "cases" ? "left" : "right left");
      return node("mrow", ...(fence ? [sign(fence[0])] : []), made, ...(fence[1] ? [sign(fence[1])] : []));
    }
    function command(word) {
      const plain = word.replace(/\*$/, "");
      if (["frac", "dfrac", "tfrac", "cfrac"].includes(plain)) return node("mfrac", group(), group());
      if (["binom", "dbinom", "tbinom"].includes(plain)) {
        const made = node("mfrac", group(), group());
        made.setAttribute("linethickness", "0");
        return node("mrow", sign("("), made, sign(")"));
      }
      if (plain === "sqrt") {
        blank();
        if (tokens[at] !== "[") return node("msqrt", group());
        at += 1;
        const index = row((token) => token === "]");
        at += 1;
        return node("mroot", group(), index);
      }
      if (plain === "boxed" || plain === "fbox") { const made = node("mrow", group()); made.setAttribute("class", "boxed"); return made; }
      if (["text", "textrm", "textbf", "textit", "mbox", "texttt", "textsf"].includes(plain)) return text(raw());
      if (plain === "operatorname") return name(raw(), true);
      if (FONTS[plain]) {
        const inner = raw();
        return /^[A-Za-z\d ]+$/.test(inner) ? name(styled(inner, FONTS[plain]), true) : parse(inner);
      }
      if (ACCENTS[plain]) { const made = node("mover", group(), sign(ACCENTS[plain])); made.setAttribute("accent", "true"); return made; }
      if (plain === "underline" || plain === "underbrace") return node("munder", group(), sign(plain === "underline" ? "_" : "⏟"));
      if (plain === "begin") { const kind = raw().replace("*", ""); return kind in TABLES ? table(kind) : fail(); }
      if (plain === "pmod") return node("mrow", sign("("), name("mod", true), space("0.3em"), group(), sign(")"));
      if (plain === "bmod") return name("mod", true);
      if (plain === "not") return sign(atom(tokens[at++] ?? fail()).textContent + "\u0338");
      if (LETTERS[plain]) return name(LETTERS[plain], true);
      if (SIGNS[plain]) return sign(SIGNS[plain]);
      if (NAMES.has(plain)) return name(plain, true);
      if (SPACES[plain]) return space(SPACES[plain]);
      if (NOTHING.has(plain)) { blank(); if (["left", "right", "middle"].includes(plain) && tokens[at] === ".") at += 1; return node("mrow"); }
      if ("{}%$#&_|".includes(plain)) return sign(plain === "|" ? "‖" : plain);
      return fail();
    }
    function atom(token) {
      if (token === undefined) fail();
      if (token[0] === "\\" && token.length > 1) return command(token.slice(1));
      if (token === "{") { at -= 1; return group(); }
      if (token === "}" || token === "&" || token === "#") fail();
      if (/^\d/.test(token)) { const made = node("mn"); made.textContent = token; return made; }
      if (/^\p{L}$/u.test(token)) return name(token);
      if (token === "'") return sign("′");
      if (token === "~") return space("0.25em");
      return sign(token === "-" ? "−" : token === "*" ? "∗" : token);
    }
    function row(ends) {
      const parts = [];
      if ((depth += 1) > DEEPEST) fail();
      for (;;) {
        blank();
        const token = tokens[at];
        if (token === undefined || ends(token)) break;
        at += 1;
        const over = token[0] === "\\" && LIMITS.has(token.slice(1));
        let base = token === "^" || token === "_" ? (at -= 1, node("mrow")) : atom(token), under = null, top = null;
        for (blank(); tokens[at] === "^" || tokens[at] === "_" || (tokens[at] === "\\limits"); blank()) {
          const mark = tokens[at++];
          if (mark === "_" && !under) under = group(); else if (mark === "^" && !top) top = group(); else if (mark !== "\\limits") fail();
        }
        if (under && top) base = node(over ? "munderover" : "msubsup", base, under, top);
        else if (under) base = node(over ? "munder" : "msub", base, under);
        else if (top) base = node(over ? "mover" : "msup", base, top);
        parts.push(base);
      }
      depth -= 1;
      return node("mrow", ...parts);
    }
    const all = row(() => false);
    return at < tokens.length ? fail() : all;
  }

  const FOUND = /\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\]|\\\(([\s\S]+?)\\\)|(?<![\\$\w])\$(?!\s)((?:[^$\\\n]|\\[\s\S])+?)(?<!\s)\$(?![\d$])|\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}/g;
  opasd.math = (text) => {
    const parts = [];
    let from = 0;
    for (const found of text.matchAll(FOUND)) {
      const source = found[1] ?? found[2] ?? found[3] ?? found[4] ?? found[0];
      if (source.length > LONGEST) continue;
      let drawn;
      try { drawn = parse(source); } catch { continue; }
      const made = node("math", drawn);
      if (found[1] ?? found[2]) made.setAttribute("display", "block");
      made.setAttribute("alttext", source);
      parts.push(text.slice(from, found.index), made);
      from = found.index + found[0].length;
    }
    return from ? [...parts, text.slice(from)] : [text];
  };

  // ---- on and off --------------------------------------------------------------------------------------------------
  const button = document.getElementById("math");
  let on = true;
  try { on = localStorage.getItem("opasd-math") !== "off"; } catch { /* no storage: on */ }
  const fill = (span) => span.replaceChildren(...(on ? opasd.math(span.dataset.tex) : [span.dataset.tex]));
  // Every text in the node that holds TeX becomes a span that can show it either way.
  opasd.typeset = (root) => {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), texts = [];
    while (walker.nextNode()) if (/\$|\\[([b]/.test(walker.currentNode.data) && !walker.currentNode.parentElement.closest("math, [data-tex]")) texts.push(walker.currentNode);
    for (const one of texts) {
      if (opasd.math(one.data).length < 2) continue;
      const span = document.createElement("span");
      span.dataset.tex = one.data;
      fill(span);
      one.replaceWith(span);
      if (button) button.hidden = false;
    }
  };
  const name = () => { if (button) { button.textContent = on ? "∑ rendered" : "∑ as text"; button.setAttribute("aria-pressed", String(on)); } };
  name();
  button?.addEventListener("click", () => {
    on = !on;
    try { localStorage.setItem("opasd-math", on ? "on" : "off"); } catch { /* no storage */ }
    name();
    for (const span of document.querySelectorAll("[data-tex]")) fill(span);
  });
  for (const root of document.querySelectorAll(".tex")) opasd.typeset(root);
})();
