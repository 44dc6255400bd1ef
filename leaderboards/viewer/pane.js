// One episode on the page: its board and its turns.
"use strict";

(function () {
  // Return what an optimal player would do in a turn, undefined if nobody looked.
  function bestOf(episode, turn) {
    const best = episode.best;
    if (!best || turn >= best.actions.length) return undefined;
    const before = best.dead.slice(0, turn).flat();
    return { actions: best.actions[turn], dead: best.dead[turn], lostBefore: before.length > 0 && before[before.length - 1] === 1 };
  }

  // Return how many boards a turn has: the one it begins with, and those within it.
  function framesOf(episode, turn) {
    if (!episode.best || turn >= episode.turns.length) return 1;
    return Math.max(1, episode.best.boards[turn].length);
  }

  // Make a pane.  linkTo(turn) gives the address of a turn.
  RB.pane = function (episode, rules, name, linkTo) {
    const legend = RB.legend(rules);
    const drawn = RB.el("div", { class: "drawn" });
    const now = RB.el("p", { class: "now" });
    const key = RB.el(
      "ul",
      { class: "legend", "aria-label": "Symbols" },
      [...legend].map(([glyph, meaning]) => RB.el("li", null, RB.el("code", null, glyph), " " + meaning))
    );
    const items = episode.turns.map((turn, i) =>
      RB.el("li", null, RB.turn(turn, i + 1, rules, bestOf(episode, i), linkTo(i)))
    );
    const end = RB.el(
      "li",
      null,
      RB.el(
        "article",
        { class: "turn", "aria-label": "End" },
        RB.el("header", null, RB.el("h3", null, "End"), RB.outcome(episode.outcome), RB.el("span", { class: "reward" }, "Return " + RB.short(episode.return))),
        RB.el("div", { class: "part see" }, RB.el("h4", null, "The last observation"), RB.longText(episode.last)),
        RB.el("div", { class: "part" }, RB.el("p", null, RB.ending(episode)))
      )
    );
    items.push(end);
    const node = RB.el(
      "section",
      { class: "pane", "aria-label": name },
      RB.el("header", { hidden: true }, RB.el("h2", null, name), RB.el("p", { class: "muted" }, RB.ending(episode))),
      RB.el("div", { class: "stage" }, RB.el("figure", null, drawn, RB.el("figcaption", null, now)), legend.size ? key : null),
      RB.el("ol", { class: "turns" }, items)
    );

    function textAt(turn, frame) {
      if (turn >= episode.turns.length) return episode.last;
      return frame > 0 ? episode.best.boards[turn][frame - 1] : episode.turns[turn].see;
    }

    function words(turn, frame) {
      if (turn >= episode.turns.length) return [RB.ending(episode)];
      const best = bestOf(episode, turn);
      const played = frame > 0 ? [RB.el("b", null, episode.turns[turn].actions.slice(0, frame).join(", ")), " played. "] : [];
      const wanted = best && best.actions[frame];
      return [...played, wanted ? "Optimal here: " + wanted + "." : ""];
    }

    // Show a turn, or a board within it.
    function show(turn, frame, scroll) {
      const at = Math.min(turn, episode.turns.length);
      const within = Math.min(frame, framesOf(episode, at) - 1);
      const text = textAt(at, within);
      const best = bestOf(episode, at);
      const parts = RB.boards(text, legend);
      const boards = parts.filter(Array.isArray);
      if (boards.length) {
        drawn.replaceChildren(...boards.map((rows) => RB.grid(rows, legend, best && best.actions[within])));
      } else {
        drawn.replaceChildren(RB.longText(text));
      }
      now.replaceChildren(...words(at, within));
      items.forEach(function (item, i) {
        item.classList.toggle("current", i === at);
        if (i === at) item.setAttribute("aria-current", "step");
        else item.removeAttribute("aria-current");
      });
      if (scroll) RB.reveal(items[at]);
    }

    return {
      node: node,
      episode: episode,
      turns: episode.turns.length,
      frames: (turn) => framesOf(episode, Math.min(turn, episode.turns.length)),
      show: show,
      headed: (on) => (node.querySelector("header").hidden = !on),
    };
  };

  // Scroll so that the top of an element is seen, if it is not.
  RB.reveal = function (node) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const box = node.getBoundingClientRect();
    const player = RB.id("player").getBoundingClientRect();
    const top = getComputedStyle(RB.id("player")).position === "sticky" ? player.height + 16 : 8;
    if (box.top >= top && box.top < innerHeight * 0.55) return;
    scrollBy({ top: box.top - top, behavior: calm ? "auto" : "smooth" });
  };
})();
