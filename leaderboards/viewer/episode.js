// The page of an episode, or of two on one instance, side by side.
// The address is #RUN/EPISODE/TURN, and then /RUN for another run to compare with.
"use strict";

(function () {
  let panes = [];
  let here = null;
  let marks = [];
  let at = 0;

  const addressOf = (turn) =>
    "#" + [here.slug, here.number, turn + 1].concat(here.other ? [here.other] : []).join("/");

  const player = RB.makePlayer({
    count: () => Math.max(0, ...panes.map((pane) => pane.turns)),
    frames: (turn) => Math.max(1, ...panes.map((pane) => pane.frames(turn))),
    show: function (turn, frame, moved) {
      panes.forEach((pane) => pane.show(turn, frame, moved && panes.length === 1 && !here.fresh));
      here.fresh = false;
      const address = addressOf(turn);
      if (location.hash !== address) history.replaceState(null, "", address);
    },
    words: (turn) => panes.map((pane) => spoken(pane, turn)).join(" "),
    leave: function (name) {
      const link = RB.id(name).getAttribute("href");
      if (link) location.hash = link.slice(link.indexOf("#"));
    },
  });

  function spoken(pane, turn) {
    const name = panes.length > 1 ? pane.name + ": " : "";
    const one = pane.episode.turns[turn];
    if (!one) return name + RB.ending(pane.episode);
    const played = one.actions.length ? "played " + one.actions.join(", ") : "nothing played";
    return name + "Turn " + (turn + 1) + ": " + played + ", reply " + (RB.parseName[one.parse] || one.parse).toLowerCase() + ", reward " + RB.short(one.reward) + ".";
  }

  async function episodeOf(slug, index, number) {
    const place = index.at[number];
    if (place === undefined) throw new Error("there is no episode " + number);
    const [piece, slot] = RB.pieceOf(index, place);
    const value = await RB.load("episodes/" + slug + "/" + piece);
    const episode = value.episodes[slot];
    return { episode: episode, rules: value.rules[episode.rules] };
  }

  // Return the number of the same instance in another run, -1 if it has none.
  function sameIn(index, episode) {
    let found = -1;
    for (let i = 0; i < index.at.length; i++) {
      const cell = index.cells[index.cell[i]];
      const same = index.seed[i] === episode.seed && cell.cell === episode.cell && cell.split === episode.split;
      if (same && (found < 0 || index.rep[i] === episode.rep)) found = i;
    }
    return found;
  }

  // Return a run's label and, where it is an iteration of a training, its page.
  async function about(slug) {
    const training = /^(.*)~(\d+)$/.exec(slug);
    if (training) {
      const known = (await RB.load("site")).trainings.find((one) => one.slug === training[1]);
      if (known) return { label: known.label + ", iteration " + training[2], page: "training.html#" + training[1] + "/" + training[2] };
    }
    const run = await RB.load("run/" + slug);
    return { label: run.label, page: "run.html#" + slug, unsolved: run.unsolved };
  }

  async function show() {
    const [slug, number, turn, other] = RB.address();
    const wanted = Math.max(1, Number(turn) || 1) - 1;
    if (here && here.slug === slug && here.number === Number(number) && here.other === (other || "")) {
      if (player.turn() !== wanted) player.move(wanted);
      return;
    }
    player.pause();
    here = { slug: slug, number: Number(number) || 0, other: other || "", fresh: true };
    const index = await RB.load("index/" + slug);
    const { episode, rules } = await episodeOf(slug, index, here.number);
    const run = await about(slug);
    RB.id("notices").replaceChildren();
    const made = [makePane(episode, rules, run.label)];
    if (here.other) await addOther(made, episode);
    panes = made;
    panes.forEach((pane) => pane.headed(panes.length > 1));
    RB.id("panes").classList.toggle("two", panes.length > 1);
    RB.id("panes").replaceChildren(...panes.map((pane) => pane.node));
    head(episode, run, index);
    await choices(index, episode);
    RB.id("rules").hidden = false;
    RB.id("rules").querySelector("pre").textContent = rules;
    RB.id("player").hidden = RB.id("tools").hidden = false;
    RB.id("found").textContent = RB.id("find").value = "";
    marks = [];
    player.to(wanted);
  }

  function makePane(episode, rules, label) {
    const pane = RB.pane(episode, rules, label, addressOf);
    pane.name = label;
    return pane;
  }

  async function addOther(made, episode) {
    const index = await RB.load("index/" + here.other);
    const same = sameIn(index, episode);
    const run = await about(here.other);
    if (same < 0) {
      RB.notice(run.label + " has no episode on this instance.");
      return;
    }
    const found = await episodeOf(here.other, index, same);
    made.push(makePane(found.episode, found.rules, run.label));
  }

  function head(episode, run, index) {
    const name = RB.cellName(episode.cell).replace(/ (\d+)$/, ", level $1");
    RB.title(name + ", seed " + episode.seed + " - " + run.label);
    RB.id("crumb").textContent = run.label;
    RB.id("crumb").href = run.page;
    RB.id("title").textContent = name + ", seed " + episode.seed;
    const facts = [
      RB.outcome(episode.outcome),
      "Return " + RB.short(episode.return),
      "floor " + RB.short(episode.floor) + ", ceiling " + RB.short(episode.ceiling),
      episode.cost === null ? null : "at least " + RB.plural(episode.cost, "action"),
      episode.split + " split, rep " + episode.rep,
    ];
    RB.id("subtitle").replaceChildren(...facts.filter(Boolean).map((fact) => RB.el("span", null, fact)));
    const end = index.at.length - 1;
    const to = (number) => (number < 0 || number > end ? null : "episode.html#" + [here.slug, number, 1].concat(here.other ? [here.other] : []).join("/"));
    for (const [id, number] of [["before", here.number - 1], ["after", here.number + 1]]) {
      const address = to(number);
      if (address) RB.id(id).setAttribute("href", address);
      else RB.id(id).removeAttribute("href");
    }
    if (!episode.best) {
      const reasons = (run.unsolved || []).map(([reason]) => reason).join("; ");
      RB.notice("Optimal actions are left out here" + (reasons ? ": " + reasons : "") + ".");
    }
  }

  // Offer the other runs that may hold the same instance.
  async function choices(index, episode) {
    const site = await RB.load("site");
    const rows = site.boards.flatMap((board) => [...board.ranked, ...board.others]);
    const fitting = rows.filter((row) => row.episodes && row.slug !== here.slug && row.cells.some((cell) => cell.name === episode.cell));
    RB.options(RB.id("other"), [["", "nobody"], ...fitting.map((row) => [row.slug, row.label])], here.other);
    RB.id("other").disabled = !fitting.length;
  }

  RB.id("other").addEventListener("change", function () {
    const other = RB.id("other").value;
    location.hash = [here.slug, here.number, player.turn() + 1].concat(other ? [other] : []).join("/");
  });

  // Search ---------------------------------------------------------------------

  function clear() {
    for (const pre of document.querySelectorAll("#panes pre.marked")) {
      pre.classList.remove("marked");
      if (pre.unfold) pre.unfold(false);
      else pre.textContent = pre.fullText;
    }
    marks = [];
  }

  function find(text) {
    clear();
    const wanted = text.toLowerCase();
    if (!wanted) return;
    for (const pre of document.querySelectorAll("#panes .turns pre")) {
      const whole = pre.fullText;
      const lower = whole.toLowerCase();
      // Some letters change their length in lower case; then marks would be off.
      if (lower.length !== whole.length || !lower.includes(wanted)) continue;
      if (pre.unfold) pre.unfold(true);
      const parts = [];
      let from = 0;
      for (let place = lower.indexOf(wanted); place >= 0 && marks.length < 1000; place = lower.indexOf(wanted, from)) {
        const mark = RB.el("mark", null, whole.slice(place, place + wanted.length));
        marks.push(mark);
        parts.push(whole.slice(from, place), mark);
        from = place + wanted.length;
      }
      pre.replaceChildren(...parts, whole.slice(from));
      pre.classList.add("marked");
    }
  }

  function visit(number) {
    marks.forEach((mark) => mark.classList.remove("here"));
    if (!marks.length) return;
    at = (number + marks.length) % marks.length;
    const mark = marks[at];
    mark.classList.add("here");
    const item = mark.closest("li");
    const turn = [...item.parentNode.children].indexOf(item);
    mark.closest("details")?.setAttribute("open", "");
    if (turn !== player.turn()) player.move(turn);
    mark.scrollIntoView({ block: "center" });
  }

  RB.id("tools").addEventListener("submit", function (event) {
    event.preventDefault();
    const text = RB.id("find").value;
    if (marks.length && marks.text === text) {
      visit(at + 1);
    } else {
      find(text);
      marks.text = text;
      visit(0);
    }
    RB.id("found").textContent = !text ? "" : marks.length ? at + 1 + " of " + marks.length : "not found";
  });

  window.addEventListener("hashchange", () => show().catch(RB.fail));
  show().catch(RB.fail);
})();
