"""Lists of runs: what is asked, which runs match, and what an index answers. Pure."""
