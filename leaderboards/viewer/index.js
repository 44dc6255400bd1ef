// The page of the boards.
"use strict";

RB.load("site").then(function (site) {
  const state = { cut: { env: "", level: "" }, measure: "normalized", kind: "", sort: ["value", -1] };
  let board = null;
  let shown = new Set();
  let drawnRadar = null;

  for (const one of site.boards) {
    const rows = [...one.ranked, ...one.others];
    const names = new Set(rows.flatMap((row) => row.envs.map((env) => env.name)));
    one.envNames = [...names].sort();
    one.levels = [...new Set(rows.flatMap((row) => row.cells.map((c) => c.name.split(":").pop())))].sort();
    one.kinds = [...new Set(rows.map((row) => row.class))].sort();
    one.label = one.name || "No board";
  }

  function choose() {
    const asked = RB.address()[0];
    board =
      site.boards.find((one) => one.label === asked) ||
      site.boards.find((one) => one.ranked.length + one.others.length) ||
      site.boards[0];
    const tabs = site.boards.map((one) =>
      RB.el(
        "a",
        { href: "#" + encodeURIComponent(one.label), "aria-current": one === board ? "true" : null },
        one.label
      )
    );
    RB.id("boards").replaceChildren(...(site.boards.length > 1 ? tabs : []));
    state.cut = { env: "", level: "" };
    state.kind = "";
    state.sort = ["value", -1];
    shown = new Set(board.ranked.slice(0, 3).map((row) => row.slug));
    if (!shown.size) board.others.slice(0, 3).forEach((row) => shown.add(row.slug));
    fillFilters();
    draw();
    drawRadar();
    RB.id("board").hidden = false;
  }

  function fillFilters() {
    RB.options(RB.id("class"), [["", "All"], ...board.kinds.map((kind) => [kind, kind])], "");
    RB.options(RB.id("env"), [["", "All"], ...board.envNames.map((env) => [env, RB.cellName(env)])], "");
    RB.options(RB.id("level"), [["", "All"], ...board.levels.map((level) => [level, level])], "");
    RB.id("measure").value = state.measure;
  }

  function draw() {
    RB.id("board-title").textContent = board.name ? "Board " + board.name : "Runs of no board";
    const facts = [
      board.title && board.name ? board.title : "",
      board.version ? "version " + board.version : "",
      board.planned ? RB.plural(board.planned, "episode") : "",
    ];
    RB.id("board-about").textContent = facts.filter(Boolean).join(" \u00b7 ");
    const count = RB.boardTable(RB.id("table"), board, state, sortBy);
    const all = board.ranked.length + board.others.length;
    RB.id("local").textContent = aboutLocalRuns();
    RB.id("local").hidden = !RB.id("local").textContent;
    RB.id("none").hidden = count > 0;
    RB.id("none").textContent = all
      ? "No entry fits these filters."
      : "Nobody has submitted to this board yet, and no run of it was given.";
    return count;
  }

  // Return whose ranks these are, where runs stand beside entries.
  function aboutLocalRuns() {
    const isLocal = (row) => row.status === "run";
    if (!board.name || !board.ranked.some(isLocal)) return "";
    return board.ranked.every(isLocal)
      ? "No entry of this board is ranked here, so the ranks are those of the local runs among themselves."
      : "Ranks are among the entries of the board. A local run was given to this site and never submitted: it stands where its score places it, without a rank, and moves nobody else's.";
  }

  function sortBy(key) {
    const falling = key !== "rank" && key !== "label" && key !== "class";
    const [current, direction] = state.sort;
    state.sort = [key, key === current ? -direction : falling ? -1 : 1];
    draw();
    const button = RB.id("table").querySelector('[data-key="' + key + '"]');
    button.focus();
    RB.say("Sorted by " + button.textContent + (state.sort[1] > 0 ? ", rising" : ", falling"));
  }

  RB.id("filters").addEventListener("change", function () {
    state.kind = RB.id("class").value;
    state.cut = { env: RB.id("env").value, level: RB.id("level").value };
    state.measure = RB.id("measure").value;
    if (state.sort[0].startsWith("env:")) state.sort = ["value", -1];
    RB.say(RB.plural(draw(), "entry").replace("entrys", "entries"));
  });
  RB.id("filters").addEventListener("submit", (event) => event.preventDefault());

  function axes() {
    const rows = [...board.ranked, ...board.others];
    // Three corners make a shape; with fewer environments the cells are the axes.
    if (board.envNames.length >= 3) return [board.envNames, "envs"];
    const cells = new Set(rows.flatMap((row) => row.cells.map((cell) => cell.name)));
    return [[...cells].sort(), "cells"];
  }

  function drawRadar() {
    const rows = [...board.ranked, ...board.others];
    const [names, place] = axes();
    RB.id("profile").hidden = !rows.length || names.length < 3;
    if (RB.id("profile").hidden) return;
    const colour = (row) => "var(--series-" + (chosen().indexOf(row) % 5) + ")";
    const chosen = () => rows.filter((row) => shown.has(row.slug));
    drawnRadar = function () {
      const lines = chosen().map(function (row) {
        const values = names.map(function (name) {
          const part = row[place].find((one) => one.name === name);
          return part ? part.normalized[0] : null;
        });
        return { name: row.label, values: values, colour: colour(row) };
      });
      RB.id("radar").replaceChildren(RB.radar(names.map(RB.cellName), lines));
      RB.id("radar-rows").querySelectorAll(".key").forEach(function (key, i) {
        const row = rows[i];
        key.style.setProperty("background", shown.has(row.slug) ? colour(row) : "");
      });
    };
    const boxes = rows.slice(0, 40).map(function (row) {
      const box = RB.el("input", { type: "checkbox", checked: shown.has(row.slug) });
      box.addEventListener("change", function () {
        if (box.checked) shown.add(row.slug);
        else shown.delete(row.slug);
        drawnRadar();
      });
      return RB.el("label", null, box, RB.el("span", { class: "key", "aria-hidden": "true" }), row.label);
    });
    RB.id("radar-rows").replaceChildren(RB.el("legend", null, "Show"), ...boxes);
    drawnRadar();
  }

  RB.id("trainings").hidden = !site.trainings.length;
  RB.id("trainings")
    .querySelector("ul")
    .replaceChildren(
      ...site.trainings.map((one) =>
        RB.el(
          "li",
          null,
          RB.el("a", { href: "training.html#" + one.slug }, one.label),
          RB.el("p", { class: "muted" }, [one.method, ...one.envs.map(RB.cellName)].filter(Boolean).join(" \u00b7 ")),
          RB.el(
            "p",
            { class: "small" },
            [
              RB.plural(one.iterations, "iteration"),
              RB.plural(one.alarms, "alarm"),
              one.kept ? RB.count(one.kept) + " kept" : "no rollouts kept",
            ].join(", ")
          )
        )
      )
    );
  window.addEventListener("hashchange", choose);
  choose();
}).catch(RB.fail);
