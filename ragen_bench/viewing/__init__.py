"""The static site: boards, entries, runs and trainings as files that any browser opens.

`ragen_bench.viewing.site.build` writes it; templates, scripts and styles are in
``leaderboards/viewer/``.  `docs/viewer.md` explains what it shows.
"""
