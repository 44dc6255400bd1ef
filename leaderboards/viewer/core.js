// What every page uses: data from scripts, elements, numbers, notices.
// Text of a record reaches the page by textContent alone.
"use strict";

const RB = {};

(function () {
  const KEY = /^(site|(run|index|training)\/[A-Za-z0-9][A-Za-z0-9._~-]*|episodes\/[A-Za-z0-9][A-Za-z0-9._~-]*\/\d+)$/;
  const KEPT = 24;
  const SVG = "http://www.w3.org/2000/svg";
  const waiting = new Map();
  const loaded = new Map();
  const policy = window.trustedTypes
    ? trustedTypes.createPolicy("ragen", { createScriptURL: (url) => url })
    : { createScriptURL: (url) => url };

  // A piece of data calls this with what it holds.
  window.ragen = function (key, value) {
    const ask = waiting.get(key);
    if (ask) ask(value);
  };

  // Return a promise of a piece of data.
  RB.load = function (key) {
    if (loaded.has(key)) {
      const known = loaded.get(key);
      loaded.delete(key);
      loaded.set(key, known);
      return known;
    }
    const promise = new Promise(function (resolve, reject) {
      if (!KEY.test(key)) {
        reject(new Error("no such page"));
        return;
      }
      const script = document.createElement("script");
      let came = false;
      waiting.set(key, function (value) {
        came = true;
        resolve(value);
      });
      script.onload = script.onerror = function () {
        waiting.delete(key);
        script.remove();
        if (!came) {
          loaded.delete(key);
          reject(new Error("data/" + key + ".js cannot be read"));
        }
      };
      script.src = policy.createScriptURL("data/" + key + ".js");
      document.head.append(script);
    });
    loaded.set(key, promise);
    if (loaded.size > KEPT) loaded.delete(loaded.keys().next().value);
    return promise;
  };

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") {
        for (const [kind, act] of Object.entries(value)) node.addEventListener(kind, act);
      } else if (name === "css") {
        for (const [key, rule] of Object.entries(value)) node.style.setProperty(key, rule);
      } else if (name === "text") {
        node.textContent = value;
      } else {
        node.setAttribute(name, value === true ? "" : value);
      }
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  }

  // Return a new element; strings among the children are text.
  RB.el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  RB.svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  RB.id = (name) => document.getElementById(name);

  // Fill a <select>: pairs of value and text.
  RB.options = function (select, pairs, chosen) {
    select.replaceChildren(
      ...pairs.map(([value, text]) => RB.el("option", { value: value, selected: value === chosen }, text))
    );
  };

  const minus = (text) => text.replace(/^-/, "\u2212");
  RB.number = function (value, digits) {
    if (value === null || value === undefined) return "\u2013";
    const text = value.toFixed(digits === undefined ? 2 : digits);
    return minus(Number(text) === 0 ? text.replace(/^-/, "") : text);
  };
  RB.short = (value) => (value === null || value === undefined ? "\u2013" : minus(String(Number(value.toPrecision(4)))));
  RB.brief = (value) => minus(String(Number(value.toPrecision(2))));
  RB.count = (value) => (value === null || value === undefined ? "\u2013" : value.toLocaleString("en"));
  RB.percent = (value) => (value === null || value === undefined ? "\u2013" : RB.number(100 * value, 1) + " %");
  RB.range = (interval) =>
    interval[1] === null || interval[1] === undefined
      ? ""
      : RB.number(interval[1]) + " to " + RB.number(interval[2]);
  RB.plural = (count, noun) => RB.count(count) + " " + noun + (count === 1 ? "" : "s");

  // "ragen/Sokoban-v0:2" to "Sokoban 2"; other namespaces stay.
  RB.cellName = (name) => name.replace(/^ragen\//, "").replace(/-v0(?=:|$)/, "").replace(":", " ");
  // What an agent that does not come with ragen-bench is, only it says itself.
  RB.className = (about) => about.class + (about.declared ? ", as declared" : "");
  RB.classTag = (about) =>
    RB.el("span", { class: "tag", title: about.declared ? "what the agent says of itself" : null }, RB.className(about));
  RB.player = (about) => [about.agent, about.model].filter(Boolean).join(" \u00b7 ");

  RB.outcomeName = {
    solved: "Solved",
    failed: "Failed",
    finished: "Finished",
    turn_limit: "Out of turns",
    context_overflow: "Context overflow",
    agent_error: "Agent error",
    provider_error: "Provider error",
    timeout: "Timeout",
    owed: "Owed",
  };
  RB.parseName = {
    ok: "Fine",
    empty: "Empty",
    no_answer: "No answer",
    unparsable: "Unreadable",
    illegal: "Not allowed",
    too_many: "Too many",
    cut_off: "Cut off",
  };
  RB.outcome = (name) =>
    RB.el("span", { class: "outcome is-" + name }, RB.outcomeName[name] || name);

  RB.say = function (text) {
    RB.id("live").textContent = text;
  };
  RB.notice = function (text) {
    RB.id("notices").append(RB.el("p", { class: "notice", role: "status" }, text));
  };
  RB.fail = function (error) {
    RB.id("main").append(
      RB.el("p", { class: "notice bad", role: "alert" }, "This page could not be drawn: " + error.message + ".")
    );
  };
  RB.title = function (text) {
    document.title = text + " - ragen-bench";
  };

  // Return the parts of the address behind "#".
  RB.address = function () {
    const text = location.hash.slice(1);
    try {
      return decodeURIComponent(text).split("/");
    } catch (error) {
      return text.split("/");
    }
  };

  // Return a table of facts: pairs of name and value.
  RB.facts = function (pairs) {
    return RB.el(
      "dl",
      { class: "facts" },
      pairs.map(([name, value]) => [
        RB.el("dt", null, name),
        RB.el("dd", null, value instanceof Node ? value : value === null || value === "" ? "\u2013" : String(value)),
      ]).flat()
    );
  };

  // Return the piece that holds the episode at a place of the file, and where in it.
  RB.pieceOf = function (index, place) {
    let low = 0;
    let high = index.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (index.starts[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return [low, place - index.starts[low]];
  };

  document.getElementById("skip").addEventListener("click", function (event) {
    // The address behind "#" says what the page shows, so it must stay.
    event.preventDefault();
    RB.id("main").focus();
  });
})();
