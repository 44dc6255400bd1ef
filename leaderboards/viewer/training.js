// The page of a training: kept rollouts by iteration, beside curves and alarms.
"use strict";

(function () {
  const showEpisodes = RB.episodeList();
  let training = null;
  let slug = "";
  let panels = [];

  function curves() {
    const signs = training.alarms;
    panels = [];
    const figures = training.panels
      .filter((panel) => [...panel.train, ...panel.dev].some((value) => value !== null))
      .map(function (panel) {
        const last = [...panel.train].reverse().find((value) => value !== null);
        const lines = [["train", panel.train]];
        if (panel.dev.some((value) => value !== null)) lines.push(["dev", panel.dev]);
        const words = panel.title + " over " + RB.plural(training.iterations.length, "iteration") + "; at last " + RB.short(last) + ".";
        const drawn = RB.curves(training.iterations, lines, signs, words);
        panels.push(drawn);
        return RB.el("figure", null, RB.el("figcaption", null, panel.title, RB.el("span", null, RB.short(last))), drawn.chart);
      });
    RB.id("panels").replaceChildren(...figures);
    RB.id("curves").hidden = !figures.length;
  }

  function alarms() {
    RB.id("alarms").replaceChildren(
      training.alarms.length
        ? RB.el("ul", null, training.alarms.map(([iteration, , text]) => RB.el("li", null, "Iteration " + iteration + ": " + text)))
        : RB.el("p", { class: "muted" }, "None.")
    );
  }

  // Show the rollouts of the kept iteration at a place of the slider.
  async function show(place) {
    const [iteration, total, solved] = training.kept[place];
    const slider = RB.id("at");
    slider.value = String(place);
    const text = "Iteration " + iteration;
    RB.id("where").textContent = text;
    slider.setAttribute("aria-valuetext", text);
    RB.id("kept").textContent =
      RB.plural(total, "rollout") + " of iteration " + iteration + ", " + RB.count(solved) + " solved; " + RB.plural(training.kept.length, "iteration") + " kept";
    panels.forEach((panel) => panel.mark(iteration));
    const address = "#" + slug + "~" + iteration;
    if (location.hash !== address) history.replaceState(null, "", address);
    await showEpisodes(slug + "~" + iteration);
  }

  async function open() {
    const [asked, iteration] = RB.address();
    if (!training || slug !== asked) {
      slug = asked;
      training = await RB.load("training/" + slug);
      RB.title(training.label);
      RB.id("title").textContent = RB.id("crumb").textContent = training.label;
      const settings = new Map(training.settings);
      const facts = [training.method, settings.get("model"), RB.plural(training.iterations.length, "iteration")];
      RB.id("subtitle").textContent = facts.filter(Boolean).join(" \u00b7 ");
      curves();
      alarms();
      RB.id("facts").replaceChildren(RB.facts(training.settings.map(([key, value]) => [key.replaceAll("_", " "), value])));
      RB.id("at").max = String(Math.max(0, training.kept.length - 1));
    }
    RB.id("rollouts").hidden = RB.id("slider").hidden = !training.kept.length;
    if (!training.kept.length) {
      RB.id("notices").replaceChildren();
      RB.notice("This training kept no rollouts; --set keep_rollouts=[1,50,100] keeps those of these iterations.");
      return;
    }
    const place = training.kept.findIndex(([one]) => String(one) === iteration);
    await show(place < 0 ? training.kept.length - 1 : place);
  }

  RB.id("at").addEventListener("input", () => show(Number(RB.id("at").value)).catch(RB.fail));
  window.addEventListener("hashchange", () => open().catch(RB.fail));
  open().catch(RB.fail);
})();
