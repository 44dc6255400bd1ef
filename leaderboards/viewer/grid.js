// Boards of glyphs: found in a text by the legend of the rules, drawn as tiles.
"use strict";

(function () {
  // Return glyph to meaning, as the rules explain them; empty without a legend.
  RB.legend = function (rules) {
    const found = new Map();
    const lines = rules.split("\n");
    const start = lines.indexOf("Symbols:");
    const parts = start < 0 ? lines[0].split(", ") : lines.slice(start + 1);
    for (const part of parts) {
      const match = /^(\S) (?:[A-Za-z_]+: )?(\S.*)$/.exec(part);
      if (!match) {
        if (start >= 0) break;
        continue;
      }
      found.set(match[1], match[2]);
    }
    return found;
  };

  // Return the parts of a text: strings, and boards as arrays of rows.
  RB.boards = function (text, legend) {
    const parts = [];
    let block = [];
    const isRow = (line) => line.length > 1 && [...line].every((glyph) => legend.has(glyph));
    const close = function () {
      if (block.length > 1) parts.push(block);
      else parts.push(...block);
      block = [];
    };
    for (const line of text.split("\n")) {
      if (legend.size > 1 && line.length < 200 && isRow(line)) {
        if (block.length && block[0].length !== line.length) close();
        block.push(line);
      } else {
        close();
        parts.push(line);
      }
    }
    close();
    return parts;
  };

  // Return what a meaning is drawn as.
  function kinds(meaning) {
    const words = meaning.toLowerCase();
    const has = (pattern) => new RegExp("\\b(" + pattern + ")\\b").test(words);
    const player = has("you|player|agent");
    const box = has("box|crate");
    return {
      wall: has("wall"),
      ice: has("ice"),
      hole: has("hole|pit"),
      box: box,
      player: player,
      goal: has("goal|target|exit"),
      floor: has("floor|empty|free|ground|ice|space"),
    };
  }

  const tile = (name, x, y) => RB.svg("rect", { class: name, x: x, y: y, width: 1, height: 1 });

  function drawTile(glyph, meaning, x, y, icy, boxes) {
    const kind = kinds(meaning);
    const parts = [];
    const line = (name, d) => parts.push(RB.svg("path", { class: name, d: d }));
    if (kind.wall) {
      parts.push(tile("wall", x, y));
      line("wall-line", `M${x} ${y + 0.5}h1M${x + 0.5} ${y}v.5M${x + 0.25} ${y + 0.5}v.5`);
      return parts;
    }
    parts.push(tile(icy ? "ice" : "ground", x, y));
    if (kind.hole) parts.push(RB.svg("ellipse", { class: "hole", cx: x + 0.5, cy: y + 0.52, rx: 0.38, ry: 0.34 }));
    if (kind.goal && boxes) {
      parts.push(RB.svg("circle", { class: "target", cx: x + 0.5, cy: y + 0.5, r: 0.27 }));
      parts.push(RB.svg("circle", { class: "target-dot", cx: x + 0.5, cy: y + 0.5, r: 0.09 }));
    } else if (kind.goal) {
      line("pole", `M${x + 0.34} ${y + 0.2}v.62`);
      line("flag", `M${x + 0.37} ${y + 0.2}l.36 .16l-.36 .18z`);
    }
    if (kind.box) {
      const home = kind.goal ? " home" : "";
      parts.push(RB.svg("rect", { class: "box" + home, x: x + 0.14, y: y + 0.14, width: 0.72, height: 0.72, rx: 0.08 }));
      line("box-line" + home, `M${x + 0.28} ${y + 0.28}l.44 .44M${x + 0.72} ${y + 0.28}l-.44 .44`);
    }
    if (kind.player) {
      const r = kind.hole ? 0.22 : 0.3;
      parts.push(RB.svg("circle", { class: "player-body", cx: x + 0.5, cy: y + 0.5, r: r }));
      for (const dx of [-0.1, 0.1]) {
        parts.push(RB.svg("circle", { class: "player-eye", cx: x + 0.5 + dx, cy: y + 0.45, r: 0.05 }));
      }
    }
    if (!Object.values(kind).some(Boolean)) {
      parts.push(tile("other", x, y), RB.svg("text", { x: x + 0.5, y: y + 0.5 }, glyph));
    }
    return parts;
  }

  const arrows = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] };

  // Return a board as an SVG; best is the name of an optimal action.
  RB.grid = function (rows, legend, best) {
    const meanings = [...legend.values()].map(kinds);
    const icy = meanings.some((kind) => kind.ice);
    const boxes = meanings.some((kind) => kind.box);
    const [width, height] = [rows[0].length, rows.length];
    const things = [];
    const drawn = [];
    let player = null;
    rows.forEach(function (row, y) {
      [...row].forEach(function (glyph, x) {
        const meaning = legend.get(glyph);
        const kind = kinds(meaning);
        drawn.push(...drawTile(glyph, meaning, x, y, icy, boxes));
        if (kind.player) player = [x, y];
        if (kind.player || kind.box || kind.goal) {
          things.push(meaning + " at row " + (y + 1) + ", column " + (x + 1));
        }
      });
    });
    for (let x = 0; x <= width; x++) drawn.push(RB.svg("path", { class: "seam", d: `M${x} 0V${height}` }));
    for (let y = 0; y <= height; y++) drawn.push(RB.svg("path", { class: "seam", d: `M0 ${y}H${width}` }));
    const arrow = best ? arrows[best.toLowerCase()] : null;
    if (arrow && player) {
      const [dx, dy] = arrow;
      const [cx, cy] = [player[0] + 0.5, player[1] + 0.5];
      const at = (along, across) => `${cx + dx * along - dy * across} ${cy + dy * along + dx * across}`;
      drawn.push(
        RB.svg("path", { class: "best", d: `M${at(0.38, 0)}L${at(0.92, 0)}M${at(0.72, -0.18)}L${at(0.94, 0)}L${at(0.72, 0.18)}` })
      );
    }
    const size = height + " rows, " + width + " columns";
    const hint = best ? "; optimal here: " + best : "";
    return RB.svg(
      "svg",
      { class: "grid", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Board of " + size + ": " + things.join("; ") + hint + "." },
      drawn
    );
  };
})();
