// A list of the episodes of a run: filters, pages, and a search through all texts.
"use strict";

(function () {
  const SIZE = 50;

  const textsOf = function* (episode) {
    for (const turn of episode.turns) {
      yield turn.see;
      yield turn.say;
      if (turn.think) yield turn.think;
    }
    yield episode.last;
    if (episode.error) yield episode.error;
  };

  // Return the places of the episodes whose texts hold a string, telling how far it is.
  async function search(slug, index, text, tell) {
    const wanted = text.toLowerCase();
    const found = new Set();
    for (let piece = 0; piece < index.starts.length; piece++) {
      if (!tell(piece / index.starts.length, found.size)) return null;
      const value = await RB.load("episodes/" + slug + "/" + piece);
      value.episodes.forEach(function (episode, i) {
        for (const part of textsOf(episode)) {
          if (part.toLowerCase().includes(wanted)) {
            found.add(index.starts[piece] + i);
            break;
          }
        }
      });
    }
    return found;
  }

  // Fill the list of a page; returns a function that shows another run's episodes.
  RB.episodeList = function () {
    const state = { slug: "", index: null, outcome: "", cell: "", found: null, page: 0, query: 0, text: "" };

    function rows() {
      const { index } = state;
      const outcome = state.outcome === "" ? -1 : Number(state.outcome);
      const cell = state.cell === "" ? -1 : Number(state.cell);
      const kept = [];
      for (let i = 0; i < index.at.length; i++) {
        if (outcome >= 0 && index.outcome[i] !== outcome) continue;
        if (cell >= 0 && index.cell[i] !== cell) continue;
        if (state.found && !state.found.has(index.at[i])) continue;
        kept.push(i);
      }
      return kept;
    }

    function draw() {
      const { index } = state;
      const kept = rows();
      const pages = Math.max(1, Math.ceil(kept.length / SIZE));
      state.page = Math.min(state.page, pages - 1);
      const shown = kept.slice(state.page * SIZE, (state.page + 1) * SIZE);
      const query = state.found ? ' with "' + state.text + '"' : "";
      RB.id("count").textContent =
        kept.length === index.at.length && !state.found
          ? RB.plural(kept.length, "episode")
          : RB.count(kept.length) + " of " + RB.plural(index.at.length, "episode") + query;
      const heads = ["Episode", "Cell", "Seed", "Rep", "Outcome", "Return", "Turns", "Actions"];
      RB.id("episodes").replaceChildren(
        RB.el("caption", { class: "unseen" }, "Episodes"),
        RB.el("thead", null, RB.el("tr", null, heads.map((head, i) => RB.el("th", { scope: "col", class: i === 2 || i === 3 || i > 4 ? "right" : null }, head)))),
        RB.el("tbody", null, shown.map(line))
      );
      const button = (text, page, on) =>
        RB.el("button", { type: "button", disabled: !on, on: { click: () => turnTo(page) } }, text);
      RB.id("paging").replaceChildren(
        ...(pages > 1
          ? [
              button("Earlier", state.page - 1, state.page > 0),
              "Page " + RB.count(state.page + 1) + " of " + RB.count(pages),
              button("Later", state.page + 1, state.page < pages - 1),
            ]
          : [])
      );
    }

    function line(i) {
      const { index } = state;
      const cell = index.cells[index.cell[i]];
      const right = (value) => RB.el("td", { class: "right" }, value);
      const href = "episode.html#" + state.slug + "/" + i + "/1";
      return RB.el(
        "tr",
        null,
        RB.el("th", { scope: "row" }, RB.el("a", { href: href }, "Episode " + i)),
        RB.el("td", null, RB.cellName(cell.cell)),
        right(String(index.seed[i])),
        right(String(index.rep[i])),
        RB.el("td", null, RB.outcome(index.outcomes[index.outcome[i]])),
        right(RB.number(index.return[i])),
        right(String(index.turns[i])),
        right(String(index.actions[i]))
      );
    }

    function turnTo(page) {
      state.page = page;
      draw();
      RB.id("episodes").scrollIntoView({ block: "start" });
    }

    async function find() {
      const text = RB.id("text").value;
      const query = ++state.query;
      state.found = null;
      state.page = 0;
      state.text = text;
      if (text) {
        RB.id("progress").hidden = false;
        const found = await search(state.slug, state.index, text, function (share, count) {
          RB.id("bar").value = share;
          RB.id("done").textContent = Math.round(100 * share) + " % searched, " + RB.count(count) + " found";
          return query === state.query;
        });
        if (query !== state.query) return;
        state.found = found;
        RB.id("progress").hidden = true;
      }
      draw();
    }

    RB.id("filters").addEventListener("submit", function (event) {
      event.preventDefault();
      find().catch(RB.fail);
    });
    RB.id("text").addEventListener("search", () => RB.id("text").value === "" && find().catch(RB.fail));
    RB.id("stop").addEventListener("click", function () {
      state.query++;
      RB.id("progress").hidden = true;
      draw();
    });
    for (const name of ["outcome", "cell"]) {
      RB.id(name).addEventListener("change", function () {
        state[name] = RB.id(name).value;
        state.page = 0;
        draw();
      });
    }

    return async function (slug) {
      const index = await RB.load("index/" + slug);
      Object.assign(state, { slug: slug, index: index, found: null, page: 0, outcome: "", cell: "" });
      state.query++;
      RB.id("progress").hidden = true;
      RB.id("text").value = "";
      const used = [...new Set(index.outcome)].sort((a, b) => a - b);
      const outcomes = used.map((i) => [String(i), RB.outcomeName[index.outcomes[i]]]);
      const several = new Set(index.cells.map((cell) => cell.split)).size > 1;
      const cells = index.cells.map((cell, i) => [
        String(i),
        RB.cellName(cell.cell) + (several ? ", " + cell.split : ""),
      ]);
      RB.options(RB.id("outcome"), [["", "All"], ...outcomes], "");
      RB.options(RB.id("cell"), [["", "All"], ...cells], "");
      draw();
    };
  };
})();
