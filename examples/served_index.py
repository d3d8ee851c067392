"""Serve an index over HTTP, and search it from blendfilter and from DSPy's own client.

Serving takes `pip install '.[server]'`. A server that stays is one command, `blendfilter serve DIR`; docs/deploy.md
says what other machines need.

    the index:    ['Fallow Tooth Lighthouse', 'Fallow Tooth']
    open_index:   ['Fallow Tooth Lighthouse', 'Fallow Tooth'], with the same scores: True
    ColBERTv2:    ['Fallow Tooth Lighthouse', 'Fallow Tooth']
    BlendFilter:  41
"""

from threading import Event, Thread

import dspy

import blendfilter as bf
from blendfilter.resources import sample
from blendfilter.server import index_server

lm = bf.connect("offline")  # rules that read: they show the steps, not how well a model takes them
# lm = bf.connect("openai/gpt-4o-mini")  # a model; or any name with api_base="http://localhost:8000/v1"
question = "How high is the lighthouse of Fallow Tooth?"
index = bf.BM25.build(sample("corpus.jsonl"))
print("the index:   ", [passage.title for passage in index(question, k=2)])

server, ready = index_server(index, port=0), Event()  # port 0: any free one
thread = Thread(target=server.run, args=(ready.set,), daemon=True)
thread.start()
ready.wait()
remote = bf.open_index(server.url)
client = dspy.ColBERTv2(url=f"{server.url}/?index={index.fingerprint}")  # DSPy caches hits under this address
print("open_index:  ", [passage.title for passage in remote(question, k=2)], end=", ")
print("with the same scores:", remote(question, k=2) == index(question, k=2))
print("ColBERTv2:   ", [hit.long_text.partition(" | ")[0] for hit in client(question, k=2)])
with dspy.context(lm=lm):
    print("BlendFilter: ", bf.BlendFilter(remote, k=3)(question=question).answer)
server.stop()
thread.join()
