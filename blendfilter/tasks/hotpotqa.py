"""HotPotQA (Yang et al. 2018): two-hop questions over Wikipedia introductions, with supporting facts.

Data: https://hotpotqa.github.io (`hotpot_dev_distractor_v1.json`, `hotpot_dev_fullwiki_v1.json`), or on the Hugging
Face hub `hotpotqa/hotpot_qa`. The distractor files bring ten paragraphs with every question, the gold ones among them;
the full-wiki files bring retrieved ones, and the gold is often not there. A row (made up, in the official layout)::

    {"_id": "5a7f03aa1c2e", "type": "bridge", "level": "hard", "answer": "Karl Ostrander",
     "question": "Who designed the lighthouse on the island where Mira Tolland was born?",
     "supporting_facts": [["Mira Tolland", 0], ["Skerry Light", 1]],
     "context": [["Mira Tolland", ["Mira Tolland is a painter from Ulla.", " She lives in Bremsund."]],
                 ["Skerry Light", ["Skerry Light stands on Ulla.", " Karl Ostrander designed it."]], ...]}

Sentences keep upstream's leading spaces, so a paragraph is its sentences joined with nothing between them.
"""

from __future__ import annotations

from functools import partial

from blendfilter.tasks.base import Hub, Task
from blendfilter.tasks.layouts import question

TASK = Task(
    "hotpotqa",
    metrics=("em", "f1"),
    wording="hotpotqa",
    parse=partial(question, joiner=""),
    hub=Hub("hotpotqa/hotpot_qa", "distractor", "validation"),
)
