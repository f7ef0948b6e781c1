"""Benchmarks beside peers. ``pstn bench`` runs them, keeps their rows in results/, and renders README.md.

A benchmark is one file here. Its first line says what it measures, and it has

- ``DEVICES``: where it runs, of ``"cpu"`` and ``"cuda"``, as a tuple of strings;
- ``SEED``: the number its random input comes from (0 if it is not there);
- ``rows(device, quick)``: measures, and yields a row at a time, a dictionary that JSON can hold. Every row has a
  ``ratio``, above one where ours is faster, and ``want`` where there is a bar, else None. The first row may have
  ``facts``, which all rows then get (the speed of a copy, the peers' versions). ``quick`` asks for small sizes and few
  repeats: seconds, to see that it runs;
- ``COLUMNS``: what a table shows, a dictionary from headings to functions of a row;
- ``report(rows)``, if that table of the last run is not what README.md should show: Markdown.

It ends with ``if __name__ == "__main__": script(__file__)``, from :mod:`pstn.bench`, so that it runs on its own too:
``python -m benchmarks.warp --quick``. Clocks are in :mod:`benchmarks.timing`. A file with no ``rows`` is a script:
``pstn bench`` runs it with ``--out``, where its rows go.
"""
