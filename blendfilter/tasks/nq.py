"""Natural Questions, open (Kwiatkowski et al. 2019; Lee et al. 2019): web searches with short answers.

Data: https://github.com/google-research-datasets/natural-questions/tree/master/nq_open (`NQ-open.dev.jsonl`, or
`google-research-datasets/nq_open` on the Hugging Face hub); with passages from DPR (`biencoder-nq-dev.json`) or KILT
(`nq-dev-kilt.jsonl`). A row (made up, in the official layout)::

    {"question": "who keeps the light on skerry rock", "answer": ["Ada Brennock", "Brennock"]}

The official rows have no ids: a row's place in its file stands for one.
"""

from __future__ import annotations

from blendfilter.tasks.base import Hub, Task

TASK = Task("nq", metrics=("em", "f1"), wording="nq", hub=Hub("google-research-datasets/nq_open", None, "validation"))
