"""Boards, one TOML file each; ``entries/`` holds what was submitted."""
