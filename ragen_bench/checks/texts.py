"""Checks of what a player reads: ASCII, complete rules, text that can be read back."""

from ragen_bench.checks.case import Case, Player, expect, expect_same


def texts_are_ascii(case: Case) -> None:
    """Rules, action names and observations are ASCII."""
    env = case.text()
    for seed in case.seeds:
        returns = Player(env, seed).finish()
        texts = {"rules": env.rules(), "action names": " ".join(env.action_names)}
        for i, returned in enumerate(returns):
            texts[f"observation {i}"] = returned["observation"]
        for name, text in texts.items():
            expect(text.isascii(), f"seed {seed}: {name} is not ASCII: {text!r}")


def rules_are_complete(case: Case) -> None:
    """Rules of either length name every action, every glyph and the true limits."""
    for prompt in ("full", "compact"):
        env = case.text(prompt=prompt)
        for seed in case.seeds:
            env.reset(seed=seed)
            rules = env.rules()
            needed = [
                *env.action_names,
                *env.core.legend(),
                str(env.limits.max_turns),
                str(env.core.limits.max_actions),
                "<answer>",
            ]
            for text in needed:
                expect(
                    text in rules,
                    f"seed {seed}: the {prompt} rules do not mention {text!r}: {rules}",
                )


def text_can_be_read_back(case: Case) -> None:
    """``from_text(to_text())`` restores what is visible, in every style."""
    for style in case.core().styles:
        env, twin = case.core(style=style), case.core(style=style)
        for seed in case.seeds:
            twin.reset(seed=seed)
            player = Player(env, seed)
            while not player.over:
                text = env.to_text()
                twin.from_text(text)
                where = (
                    f"seed {seed}, style {style!r}, step {len(player.returns) - 1}, "
                    "from_text(to_text())"
                )
                expect_same(text, twin.to_text(), f"{where}: text")
                expect_same(env.observe(), twin.observe(), f"{where}: observation")
                expect_same(env.action_mask(), twin.action_mask(), f"{where}: mask")
                player.step()
