// The table of one board: sortable, with floor and ceiling among its rows.
"use strict";

(function () {
  const mean = (values) =>
    values.length && values.every((v) => v !== null) ? values.reduce((a, b) => a + b, 0) / values.length : null;

  // Return the interval that a row has in a cut: env and level, "" for all.
  function cutOf(row, cut, measure) {
    if (!cut.env && !cut.level && measure === "normalized") return row.score;
    if (cut.env && !cut.level) {
      const part = row.envs.find((env) => env.name === cut.env);
      return part ? part[measure] : [null, null, null, 0];
    }
    if (cut.env && cut.level) {
      const part = row.cells.find((cell) => cell.name === cut.env + ":" + cut.level);
      return part ? part[measure] : [null, null, null, 0];
    }
    // A mean over parts that the entry has no interval of.
    const parts = cut.level
      ? row.cells.filter((cell) => cell.name.split(":").pop() === cut.level)
      : row.envs;
    const asked = measure === "success" ? parts.filter((part) => part.success[3] > 0) : parts;
    return [mean(asked.map((part) => part[measure][0])), null, null, asked.length];
  }

  // Return what floor or ceiling is worth in a cut.
  function reference(board, cut, measure, end) {
    if (measure === "success") return null;
    if (measure === "normalized") return end === "ceiling" ? 1 : 0;
    const parts = board.floors.filter(function (part) {
      const isCell = part.name.includes(":");
      if (cut.env && cut.level) return part.name === cut.env + ":" + cut.level;
      if (cut.env) return part.name === cut.env;
      if (cut.level) return isCell && part.name.split(":").pop() === cut.level;
      return !isCell;
    });
    return mean(parts.map((part) => part[end]));
  }

  function referenceRow(board, cut, measure, end, envs) {
    const value = reference(board, cut, measure, end);
    return {
      reference: true,
      label: end === "ceiling" ? "Ceiling: best play" : "Floor: random play",
      about: end === "ceiling" ? "the best that the prompt allows" : "uniform random actions",
      value: [value, null, null, 0],
      envs: envs.map((env) => reference(board, { env: env, level: cut.level }, measure, end)),
    };
  }

  function entryRow(row, cut, measure, envs) {
    return {
      row: row,
      label: row.label,
      value: cutOf(row, cut, measure),
      envs: envs.map((env) => cutOf(row, { env: env, level: cut.level }, measure)[0]),
    };
  }

  const sorters = {
    // Who has no rank, such as a local run, stands behind those that have one.
    rank: (item) => (item.row && item.row.ranks ? item.row.ranks[0] : null),
    label: (item) => item.label.toLowerCase(),
    value: (item) => item.value[0],
    class: (item) => (item.row ? item.row.class : null),
    tokens: (item) => (item.row ? item.row.tokens[1] : null),
    cost: (item) => (item.row ? item.row.cost : null),
  };

  function compare(key, direction) {
    const value = key.startsWith("env:") ? (item) => item.envs[Number(key.slice(4))] : sorters[key];
    return function (a, b) {
      const [x, y] = [value(a), value(b)];
      if (x === null || x === undefined) return y === null || y === undefined ? 0 : 1;
      if (y === null || y === undefined) return -1;
      return x < y ? -direction : x > y ? direction : 0;
    };
  }

  const measures = { normalized: "Score", success: "Success", return: "Return" };

  // Draw the table.  state: cut, measure, kind (class), sort [key, direction].
  RB.boardTable = function (table, board, state, onSort) {
    const { cut, measure, kind } = state;
    const wanted = (row) => !kind || row.class === kind;
    const envs = board.envNames;
    const ranked = board.ranked.filter(wanted).map((row) => entryRow(row, cut, measure, envs));
    const others = board.others.filter(wanted).map((row) => entryRow(row, cut, measure, envs));
    const lines = ["ceiling", "floor"].map((end) => referenceRow(board, cut, measure, end, envs));
    const sorted = [...ranked, ...lines].sort(compare(...state.sort));
    others.sort(compare(...state.sort));
    const marks = [lines[1].value[0], lines[0].value[0]].filter((v) => v !== null);
    const ends = measure === "success" ? [0, 1] : marks.length === 2 ? marks : [0, 1];
    const domain = RB.domain([...ranked, ...others].map((item) => item.value), ends);
    const hasRanks = board.ranked.some((row) => row.ranks);
    const hasCost = [...board.ranked, ...board.others].some((row) => row.cost !== null);
    const columns = [
      ...(hasRanks ? [["rank", "Rank", "right"]] : []),
      ["label", "Entry", ""],
      ["value", measures[measure], ""],
      ["class", "Class", ""],
      ...(cut.env ? [] : envs.map((env, i) => ["env:" + i, RB.cellName(env), "right"])),
      ["tokens", "Tokens out", "right"],
      ...(hasCost ? [["cost", "Cost", "right"]] : []),
    ];
    const draw = (item) => rowOf(item, columns, domain, marks.length ? marks : ends);
    const bodies = [RB.el("tbody", null, sorted.map(draw))];
    if (others.length) {
      const head = RB.el("th", { colspan: columns.length, scope: "rowgroup" }, "Not ranked");
      bodies.push(RB.el("tbody", null, RB.el("tr", { class: "divider" }, head), others.map(draw)));
    }
    const name = board.title || board.name;
    table.replaceChildren(
      RB.el("caption", { class: "unseen" }, "Entries of " + name + "; the buttons of the header sort."),
      RB.el("thead", null, RB.el("tr", null, columns.map((column) => header(column, state.sort, onSort)))),
      ...bodies
    );
    return ranked.length + others.length;
  };

  function header([key, text, side], [sorted, direction], onSort) {
    const sort = key !== sorted ? "none" : direction > 0 ? "ascending" : "descending";
    const button = RB.el("button", { type: "button", "data-key": key, on: { click: () => onSort(key) } }, text);
    return RB.el("th", { scope: "col", class: side, "aria-sort": sort }, button);
  }

  function rowOf(item, columns, domain, marks) {
    const row = item.row;
    const cells = {
      rank: () => RB.el("td", { class: "right" }, row && row.ranks ? rankText(row.ranks) : "\u2013"),
      label: () => RB.el("th", { scope: "row" }, labelOf(item)),
      value: () =>
        RB.el(
          "td",
          { class: "score" },
          RB.el(
            "span",
            { class: "value" },
            RB.el("b", null, RB.number(item.value[0])),
            RB.el("small", null, RB.range(item.value))
          ),
          RB.bar(item.value, domain, marks)
        ),
      class: () => RB.el("td", null, row ? RB.classTag(row) : ""),
      tokens: () => RB.el("td", { class: "right" }, row ? RB.count(row.tokens[1]) : "\u2013"),
      cost: () =>
        RB.el("td", { class: "right" }, row && row.cost !== null ? RB.short(row.cost) + " " + (row.currency || "") : "\u2013"),
    };
    const drawn = columns.map(([key]) =>
      key.startsWith("env:")
        ? RB.el("td", { class: "right" }, RB.number(item.envs[Number(key.slice(4))]))
        : cells[key]()
    );
    return RB.el("tr", { class: item.reference ? "reference" : null }, drawn);
  }

  const rankText = (ranks) => (ranks[0] === ranks[1] ? String(ranks[0]) : ranks[0] + "\u2013" + ranks[1]);

  function labelOf(item) {
    if (item.reference) return [item.label, RB.el("span", { class: "small" }, item.about)];
    const row = item.row;
    const parts = [RB.el("a", { href: "run.html#" + row.slug }, row.label), " "];
    if (row.status === "sealed") parts.push(RB.el("span", { class: "tag sealed" }, "sealed"));
    if (row.status === "run") parts.push(RB.el("span", { class: "tag" }, "local"));
    const player = RB.player(row);
    parts.push(RB.el("span", { class: "small" }, row.by ? player + ", " + row.by : player));
    if (!row.rankable) {
      const why = row.because.join("; ") || "not rankable";
      parts.push(RB.el("span", { class: "because" }, why));
    }
    if (row.warnings) parts.push(RB.el("span", { class: "because" }, RB.plural(row.warnings, "warning")));
    return parts;
  }
})();
