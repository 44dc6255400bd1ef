// The page of an entry or a run.
"use strict";

(function () {
  const colour = (kind) => "var(--" + kind + ")";
  const parseColours = {
    ok: "var(--solved)",
    empty: "var(--timeout)",
    no_answer: "var(--failed)",
    unparsable: "var(--agent_error)",
    illegal: "var(--turn_limit)",
    too_many: "var(--finished)",
    cut_off: "var(--context_overflow)",
  };

  function tiles(run) {
    const tile = (name, value, note, first) =>
      RB.el("li", { class: first ? "first" : null }, RB.el("span", { class: "name" }, name), " ", RB.el("span", { class: "fact" }, value, note || ""));
    const score = [RB.number(run.score[0]), " ", RB.el("small", null, RB.range(run.score))];
    const domain = RB.domain([run.score], [0, 1]);
    const played = run.planned - run.owed;
    const whole = played === run.planned ? RB.count(played) : RB.count(played) + " of " + RB.count(run.planned);
    const tokens = run.tokens[1] === null ? "\u2013" : RB.count(run.tokens[1]);
    const read = run.tokens[0] === null ? "" : RB.el("small", null, " read " + RB.count(run.tokens[0]));
    const list = [
      tile("Normalized score", score, RB.bar(run.score, domain, [0, 1]), true),
      tile("Episodes", whole),
      tile("Tokens written", tokens, read),
      tile("Cost", run.cost === null ? "\u2013" : RB.short(run.cost) + " " + (run.currency || "")),
    ];
    RB.id("tiles").replaceChildren(...list);
  }

  function breakdown(run) {
    const ks = [...new Set(run.breakdown.flatMap((row) => row.pass_at.map(([k]) => k)))].filter((k) => k > 1);
    const costs = run.breakdown.some((row) => row.cost !== null);
    const heads = ["Environment, level", "Episodes", "Success", "Normalized", "Return", "Floor", "Ceiling"]
      .concat(["Efficiency", "Invalid", "Turns", "Actions", "Tokens"])
      .concat(costs ? ["Cost"] : [])
      .concat(ks.flatMap((k) => ["pass@" + k, "pass^" + k]));
    const right = (text) => RB.el("td", { class: "right" }, text);
    const all = run.breakdown;
    const rates = RB.domain(all.map((row) => row.success), [0, 1]);
    const norms = RB.domain(all.map((row) => row.normalized), [0, 1]);
    const measured = (interval, domain, marks) =>
      RB.el(
        "td",
        null,
        RB.el("b", { class: "num" }, RB.number(interval[0])),
        " ",
        RB.el("span", { class: "small num" }, RB.range(interval)),
        domain && interval[0] !== null ? RB.bar(interval, domain, marks) : ""
      );
    const chance = (list, k) => {
      const found = list.find(([n]) => n === k);
      return measured(found ? found.slice(1) : [null, null, null, 0]);
    };
    const rows = all.map((row) =>
      RB.el(
        "tr",
        { class: row.cell ? "cell" : "env" },
        RB.el("th", { scope: "row" }, row.cell ? "Level " + row.name.split(":").pop() : RB.cellName(row.name)),
        right(RB.count(row.episodes)),
        measured(row.success, rates, [0, 1]),
        measured(row.normalized, norms, [0, 1]),
        measured(row.return, row.floor === null ? null : RB.domain([row.return], [row.floor, row.ceiling]), [row.floor, row.ceiling]),
        right(RB.number(row.floor)),
        right(RB.number(row.ceiling)),
        right(RB.number(row.efficiency)),
        right(RB.percent(row.invalid)),
        right(RB.number(row.turns, 1)),
        right(RB.number(row.actions, 1)),
        right(RB.number(row.tokens, 1)),
        costs ? right(RB.short(row.cost)) : null,
        ks.flatMap((k) => [chance(row.pass_at, k), chance(row.pass_hat, k)])
      )
    );
    const head = heads.map((text, i) =>
      RB.el("th", { scope: "col", class: i === 1 || (i > 4 && i < 12 + Number(costs)) ? "right" : null }, text)
    );
    RB.id("breakdown").replaceChildren(
      RB.el("caption", { class: "unseen" }, "Scores by environment and level"),
      RB.el("thead", null, RB.el("tr", null, head)),
      RB.el("tbody", null, rows)
    );
    RB.id("scores").hidden = false;
  }

  function bars(run) {
    const whole = run.outcomes.concat(run.owed ? [["owed", run.owed]] : []);
    const cells = run.breakdown.filter((row) => row.cell);
    const name = (row) => RB.cellName(row.name);
    RB.id("outcomes").replaceChildren(
      RB.stacks([["All", whole], ...cells.map((row) => [name(row), row.outcomes])], RB.outcomeName, (kind) =>
        kind === "owed" ? "var(--line)" : colour(kind)
      )
    );
    RB.id("parses").replaceChildren(
      RB.stacks(cells.map((row) => [name(row), row.parses]), RB.parseName, (kind) => parseColours[kind])
    );
  }

  function link(value) {
    // The record's check allows nothing else; a page trusts no record.
    if (!/^https?:\/\//.test(value)) return value;
    return RB.el("a", { href: value, rel: "noopener noreferrer nofollow" }, value);
  }

  function how(run) {
    const parts = [];
    if (run.command) {
      const copy = RB.el("button", { type: "button" }, "Copy");
      copy.addEventListener("click", async function () {
        try {
          await navigator.clipboard.writeText(run.command);
          copy.textContent = "Copied";
        } catch (error) {
          getSelection().selectAllChildren(code);
          copy.textContent = "Selected";
        }
      });
      const code = RB.el("code", { id: "command" }, run.command);
      parts.push(RB.el("h3", null, "Command"), RB.el("div", { class: "command" }, code, copy));
    }
    const fold = (name, pairs, open) =>
      pairs && pairs.length
        ? parts.push(RB.el("details", { open: open }, RB.el("summary", null, name), RB.facts(pairs)))
        : null;
    const words = (pairs) => pairs.map(([key, value]) => [key.replaceAll("_", " "), value]);
    if (run.meta) {
      const meta = run.meta.map(([key, value]) => [key, key === "link" && value ? link(value) : value]);
      fold("What its makers say", words(meta), true);
    }
    fold("Settings", words(run.settings), true);
    const made = [["started", run.started], ["commit", run.commit]];
    fold("Versions", made.concat(run.versions), false);
    fold("What the model says of itself", words(run.facts), false);
    fold("Price", words(run.price), false);
    const code = (pairs) => pairs.map(([key, value]) => [key, RB.el("code", null, String(value))]);
    fold("Hashes", code((run.hashes || []).concat(run.prompts.map(([cell, hash]) => ["prompt of " + RB.cellName(cell), hash]))), false);
    RB.id("facts").replaceChildren(...parts);
    RB.id("how").hidden = false;
  }

  // Return a warning of the verifier, "code  place: message", as a sentence.
  RB.warning = function (text) {
    const [, code, message] = /^(\w+)  .*?: ([^]*)$/.exec(text) || [null, "", text];
    const heads = {
      prompt_unchecked: "Prompts were not checked",
      solver_like: "Plays as a solver does",
    };
    return (heads[code] || "Warning of the verifier") + ": " + message + ".";
  };

  function notices(run) {
    RB.id("notices").replaceChildren();
    if (!run.rankable) RB.notice("Not ranked: " + (run.because.join("; ") || "no board") + ".");
    (run.warnings || []).forEach((text) => RB.notice(RB.warning(text)));
    if (run.status && !run.episodes) RB.notice("This site holds no transcripts of this entry; its bundle does.");
  }

  const showEpisodes = RB.episodeList();

  async function show() {
    const slug = RB.address()[0];
    const run = await RB.load("run/" + slug);
    RB.title(run.label);
    RB.id("crumb").textContent = run.label;
    RB.id("title").textContent = run.label;
    const where = run.board ? "board " + run.board : "no board";
    const status = { sealed: "played by the board's keepers on sealed seeds", replayed: "checked by replay" }[run.status];
    RB.id("subtitle").textContent = [RB.player(run), RB.className(run), where, status].filter(Boolean).join(" \u00b7 ");
    notices(run);
    tiles(run);
    breakdown(run);
    bars(run);
    how(run);
    RB.id("list").hidden = !run.episodes;
    if (run.episodes) await showEpisodes(run.slug);
  }

  window.addEventListener("hashchange", () => show().catch(RB.fail));
  show().catch(RB.fail);
})();
