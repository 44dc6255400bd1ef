// A reply in plain words: what was answered, what of it was played, and why the rest not.
"use strict";

(function () {
  // Return the names that the last answer of a reply lists, as it wrote them.
  RB.answered = function (reply) {
    const answers = [...reply.matchAll(/<\s*answer\s*>([^]*?)<\s*\/\s*answer\s*>/gi)];
    if (!answers.length) return [];
    return answers[answers.length - 1][1]
      .split(/\|\||[\n|;,]/)
      .map((name) => name.trim())
      .filter(Boolean)
      .slice(0, 60);
  };

  // Return the names of the actions and the most in a reply, as the rules give them.
  RB.known = function (rules) {
    const names = /^Actions: (.*?)\.(?:\s|$)/m.exec(rules);
    const most = /may hold up to (\d+) actions/.exec(rules) || /(\d+) a turn\./.exec(rules);
    return { names: names ? names[1].split(", ") : [], most: most ? Number(most[1]) : null };
  };

  const quoted = (name) => "\u201c" + (name.length > 40 ? name.slice(0, 40) + "\u2026" : name) + "\u201d";

  // Return a sentence on what was wrong with a reply, "" if nothing was.
  RB.why = function (turn, rules) {
    const known = RB.known(rules);
    const answered = RB.answered(turn.say);
    const played = turn.actions.length;
    const rest = played ? "." : ", so nothing was played.";
    const folded = known.names.map((name) => name.toLowerCase());
    switch (turn.parse) {
      case "ok":
        return "";
      case "empty":
        return "The reply was empty" + rest;
      case "no_answer":
        return "The reply had no <answer>\u2026</answer> that could be read" + rest;
      case "unparsable": {
        const strange = answered.find((name) => !folded.includes(name.toLowerCase()));
        const list = known.names.length ? " (" + known.names.join(", ") + ")" : "";
        return strange
          ? "The answer holds " + quoted(strange) + ", which is none of the actions" + list + rest
          : "The answer names no action of this task" + list + rest;
      }
      case "illegal": {
        const refused = answered[played];
        const what = refused ? quoted(refused) : "An action";
        return what + " was not allowed in that state; " + (played ? "only the actions before it were played." : "nothing was played.");
      }
      case "too_many": {
        const most = known.most ? " the " + known.most + " that a reply may hold" : " a reply may hold";
        return "The answer listed " + answered.length + " actions, more than" + most + "; only the first " + played + " were played.";
      }
      case "cut_off":
        return "The reply was cut off at its limit of tokens" + rest;
      default:
        return "";
    }
  };

  // Return a sentence on how an episode ended.
  RB.ending = function (episode) {
    const actions = episode.turns.reduce((sum, turn) => sum + turn.actions.length, 0);
    const cost = episode.cost === null ? "" : " (the fewest possible: " + episode.cost + ")";
    const text = {
      solved: "Solved with " + RB.plural(actions, "action") + cost + ".",
      failed: "Failed: the episode ended without success.",
      finished: "Ran to its end; this task knows no success, only pay.",
      turn_limit: "Ran out of turns or actions.",
      context_overflow: "The prompt no longer fitted the model's context.",
      agent_error: "The agent broke down.",
      provider_error: "The model could not be asked; nobody's play, so it counts nowhere.",
      timeout: "It took too long; nobody's play, so it counts nowhere.",
    }[episode.outcome];
    return text + (episode.error ? " " + episode.error : "");
  };
})();
