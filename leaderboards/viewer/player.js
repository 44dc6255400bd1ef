// Play and pause, steps, speed and keys.  What is shown is the pages' business.
"use strict";

// Make a player.  count(): turns of the longest episode; frames(turn): boards within a
// turn; show(turn, frame, moved): draws; words(turn): what a screen reader hears.
RB.makePlayer = function (page) {
  const state = { turn: 0, frame: 0, timer: 0 };
  const id = RB.id;

  function draw(moved) {
    const count = page.count();
    const slider = id("at");
    slider.max = String(count);
    slider.value = String(state.turn);
    const text = state.turn < count ? "Turn " + (state.turn + 1) + " of " + count : "End, after " + RB.plural(count, "turn");
    id("where").textContent = text;
    slider.setAttribute("aria-valuetext", text);
    for (const name of ["first", "back"]) id(name).disabled = state.turn === 0;
    for (const name of ["step", "last"]) id(name).disabled = state.turn >= count;
    page.show(state.turn, state.frame, moved);
  }

  function to(turn, quiet) {
    state.turn = Math.max(0, Math.min(page.count(), turn));
    state.frame = 0;
    draw(true);
    if (!quiet) RB.say(page.words(state.turn));
  }

  function pause() {
    clearTimeout(state.timer);
    state.timer = 0;
    id("player").classList.remove("playing");
    id("play").setAttribute("aria-label", "Play");
  }

  function tick() {
    if (state.turn >= page.count()) {
      pause();
      RB.say(page.words(state.turn));
      return;
    }
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!calm && state.frame + 1 < page.frames(state.turn)) {
      state.frame += 1;
      draw(false);
    } else {
      to(state.turn + 1, true);
    }
    state.timer = setTimeout(tick, Number(id("speed").value));
  }

  function play() {
    if (state.timer) {
      pause();
      RB.say("Paused. " + page.words(state.turn));
      return;
    }
    if (state.turn >= page.count()) to(0, true);
    id("player").classList.add("playing");
    id("play").setAttribute("aria-label", "Pause");
    state.timer = setTimeout(tick, Number(id("speed").value));
  }

  function move(turn) {
    pause();
    to(turn);
  }

  id("play").addEventListener("click", play);
  id("first").addEventListener("click", () => move(0));
  id("back").addEventListener("click", () => move(state.turn - 1));
  id("step").addEventListener("click", () => move(state.turn + 1));
  id("last").addEventListener("click", () => move(page.count()));
  id("at").addEventListener("input", () => move(Number(id("at").value)));
  id("keys").addEventListener("click", () => id("help").showModal());

  const keys = {
    " ": play,
    ArrowRight: () => move(state.turn + 1),
    ArrowLeft: () => move(state.turn - 1),
    Home: () => move(0),
    End: () => move(page.count()),
    n: () => page.leave("after"),
    p: () => page.leave("before"),
    "/": () => id("find").focus(),
    "?": () => id("help").showModal(),
  };
  document.addEventListener("keydown", function (event) {
    const busy = event.target.closest("input, select, textarea, dialog, summary");
    const pressed = event.key === " " && event.target.closest("button, a");
    if (busy || pressed || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = keys[event.key];
    if (!act || id("help").open) return;
    event.preventDefault();
    act();
  });

  return { to: (turn) => (pause(), to(turn, true)), pause: pause, turn: () => state.turn, move: move };
};
