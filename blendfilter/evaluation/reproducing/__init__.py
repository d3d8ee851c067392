"""A paper's tables and figures by command: declared in small files, planned, run, and held against what was published.

::

    papers.py   a table or figure as a TOML file, checked
    sources.py  the questions and indexes that a command names, by task and by the paper's retriever
    own.py      each question's own paragraphs as an index
    programs.py the compiled programs that FilCo's filters speak as
    silver.py   the silver contexts that rows want which read gold
    trimmed.py  the trimmed indexes that rows search, judged by the same questions
    runs.py     which runs a table needs, named by what they are, so that tables share them
    plan.py     what that will cost, before anything is spent
    doing.py    the runs, one after the other, each reusing the earlier ones' calls
    lines.py    one line of a measured table
    results.py  published beside measured, with paired tests
    filtered.py what filters leave: output precision, tokens, whom it helps
    judging.py  what a judge's verdicts take
    dropping.py what trimmed indexes left out
    printing.py the same as text, Markdown and JSON
    drawing.py  the plots
"""
