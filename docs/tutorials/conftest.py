"""Tutorials are scripts that run from top to bottom: tests/test_tutorials.py runs them, importing them would too."""

collect_ignore_glob = ["*.py"]
