"""Ask a question about your own documents, and see which passages the answer was read from.

    python examples/your_documents.py FOLDER "QUESTION"

The folder's .txt, .md and .rst files are cut at headings into passages of at most 100 words. Without one, two short
files are written into ./notes. `bf.BM25.build(folder, out="my_index")` keeps the index for `bf.open_index("my_index")`.

    Who built Oddle Mill? Jon Brask
    kept    notes.md, characters 14 to 73: Oddle Mill | It was built by Jon Brask in 1790, and still grinds barley.
    dropped notes.md, characters 83 to 149: Tane | The river, 40 km long, turns Oddle Mill and meets the sea at Vell.
    dropped ferry.txt, characters 0 to 36: ferry | The ferry was built at Vell in 1902.
"""

import sys
from pathlib import Path

import dspy

import blendfilter as bf

lm = bf.connect("offline")  # rules that read: they show the steps, not how well a model takes them
# lm = bf.connect("openai/gpt-4o-mini")  # a model; or any name with api_base="http://localhost:8000/v1"
if len(sys.argv) == 3:
    folder, question = Path(sys.argv[1]), sys.argv[2]
else:
    folder, question = Path("notes"), "Who built Oddle Mill?"
    folder.mkdir(exist_ok=True)
    (folder / "ferry.txt").write_text("The ferry was built at Vell in 1902.\n")
    (folder / "notes.md").write_text(
        "# Oddle Mill\n\nIt was built by Jon Brask in 1790, and still grinds barley.\n\n"
        "# Tane\n\nThe river, 40 km long, turns Oddle Mill and meets the sea at Vell.\n"
    )
with dspy.context(lm=lm):
    prediction = bf.BlendFilter(bf.BM25.build(folder), k=3)(question=question)

print(question, prediction.answer)
for passage in {found.id: found for branch in prediction.branches.values() for found in branch.retrieved}.values():
    fate = "kept   " if passage.id in {kept.id for kept in prediction.knowledge} else "dropped"
    print(fate, "{source}, characters {start} to {end}:".format(**passage.metadata), passage.line)
