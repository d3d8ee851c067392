"""A paper's tables and figures by command: declared in small files, planned, run, and held against what was published.

::

    papers.py   a table or figure as a TOML file, checked
    sources.py  the questions and indexes that a command names, by task and by the paper's retriever
    runs.py     which runs a table needs, named by what they are, so that tables share them
    plan.py     what that will cost, before anything is spent
    doing.py    the runs, one after the other, each reusing the earlier ones' calls
    results.py  published beside measured, with paired tests
    printing.py the same as text, Markdown and JSON
    figures.py  Figures 2 to 4: the points behind the plots
    drawing.py  the plots
"""
