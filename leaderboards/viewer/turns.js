// One turn of an episode as an article.
"use strict";

(function () {
  const FOLD = 4000;

  // Return a text that is folded when it is long; the marks of a search stay possible.
  RB.longText = function (text, kind) {
    const pre = RB.el("pre", { class: kind || null });
    pre.fullText = text;
    if (text.length <= FOLD) {
      pre.textContent = text;
      return pre;
    }
    pre.textContent = text.slice(0, FOLD) + "\u2026";
    const button = RB.el("button", { type: "button", class: "fold", "aria-expanded": "false" });
    const label = (open) => (open ? "Show less" : "Show all " + RB.count(text.length) + " characters");
    button.textContent = label(false);
    pre.unfold = function (open) {
      pre.textContent = open ? text : text.slice(0, FOLD) + "\u2026";
      button.setAttribute("aria-expanded", String(open));
      button.textContent = label(open);
    };
    button.addEventListener("click", () => pre.unfold(button.getAttribute("aria-expanded") !== "true"));
    return RB.el("div", null, pre, button);
  };

  const part = (kind, title, ...children) =>
    RB.el("div", { class: "part " + kind }, RB.el("h4", null, title), children);

  function actions(turn, best) {
    const answered = RB.answered(turn.say);
    const items = turn.actions.map(function (name, i) {
      const wanted = best ? best.actions[i] : undefined;
      const optimal = wanted !== undefined && wanted === name;
      const lost = best && best.dead[i] && !(i > 0 ? best.dead[i - 1] : best.lostBefore);
      const notes = [
        turn.effective[i] ? "" : "no effect",
        optimal ? "optimal" : wanted === undefined ? "" : "optimal: " + wanted,
        lost ? "success is out of reach now" : "",
      ].filter(Boolean);
      return RB.el(
        "li",
        { class: (optimal ? "optimal" : "") + (lost ? " lost" : "") },
        RB.el("span", null, name),
        notes.length ? RB.el("small", null, " " + notes.join(", ")) : null
      );
    });
    const left = ["ok", "too_many", "illegal"].includes(turn.parse) ? answered.slice(turn.actions.length) : [];
    left.forEach((name) =>
      items.push(RB.el("li", { class: "unplayed" }, RB.el("span", null, name), RB.el("small", null, " not played")))
    );
    if (!items.length) {
      const wanted = best && best.actions[0];
      return RB.el("p", { class: "muted" }, "None." + (wanted ? " Optimal here: " + wanted + "." : ""));
    }
    return RB.el("ul", { class: "actions" }, items);
  }

  function reward(turn) {
    const parts = (turn.parts || []).filter(([, value]) => value !== 0);
    const sum = parts.length > 1 || (parts.length === 1 && parts[0][0] !== "task");
    const words = sum ? " = " + parts.map(([name, value]) => name + " " + RB.short(value)).join(" + ") : "";
    const scored = turn.scored || 0;
    const other = scored !== turn.reward ? ", scored " + RB.short(scored) : "";
    return "Reward " + RB.short(turn.reward) + words + other;
  }

  function more(turn) {
    const tokens = turn.tokens || [];
    const facts = [
      ["read", tokens[0], "tokens"],
      ["of them cached", tokens[1], "tokens"],
      ["written", tokens[2], "tokens"],
      ["reasoning", tokens[3], "tokens"],
      ["time", turn.seconds, "s"],
    ].filter(([, value]) => value !== null && value !== undefined && value !== 0);
    const pairs = facts.map(([name, value, unit]) => [name, RB.count(value) + " " + unit]);
    pairs.push(["finish reason", turn.finish || "stop"]);
    if (turn.cut) pairs.push(["left out of the prompt", RB.plural(turn.cut, "earlier turn")]);
    if (turn.prompt) pairs.push(["hash of the prompt", RB.el("code", null, turn.prompt)]);
    (turn.details || []).forEach(([key, value]) => pairs.push([key, RB.longText(String(value))]));
    return RB.el("details", { class: "part" }, RB.el("summary", null, "Tokens, time and hashes"), RB.facts(pairs));
  }

  // Return the article of a turn.  link: where the turn's own address leads.
  RB.turn = function (turn, number, rules, best, link) {
    const wrong = turn.parse !== "ok";
    const why = RB.why(turn, rules);
    // Thinking that stands in the reply itself is shown apart and in it.
    return RB.el(
      "article",
      { class: "turn", "aria-label": "Turn " + number },
      RB.el(
        "header",
        null,
        RB.el("h3", null, RB.el("a", { href: link, title: "Link to this turn" }, "Turn " + number)),
        RB.el("span", { class: "parse" + (wrong ? " wrong" : "") }, RB.parseName[turn.parse] || turn.parse),
        turn.finish === "length" && turn.parse !== "cut_off" ? RB.el("span", { class: "tag" }, "cut at the token limit") : null,
        turn.cut ? RB.el("span", { class: "tag" }, RB.plural(turn.cut, "earlier turn") + " left out of the prompt") : null,
        RB.el("span", { class: "reward" }, reward(turn))
      ),
      part("see", "The agent saw", RB.longText(turn.see)),
      turn.think
        ? RB.el("details", { class: "part think", open: true }, RB.el("summary", null, "It reasoned"), RB.longText(turn.think))
        : null,
      part("say", "It replied", turn.say ? RB.longText(turn.say) : RB.el("p", { class: "muted" }, "Nothing.")),
      part("did", "Played", actions(turn, best), why ? RB.el("p", { class: "why" }, why) : null),
      more(turn)
    );
  };
})();
