"""Models: how they are connected, asked, metered, run in this process, and scored. Which file is of which room:

- **Connecting**: `model` (`connect`, and the model that methods call), `profiles` (what a family or a server takes),
  `probing` (what a server can do).
- **Engines**, which all answer `complete(request)`: `openai` (any OpenAI-compatible server) over `clients`, `streamed`
  and `refusals`; `adopted` (a `dspy.LM` of the user's), `offline` (the rule-based reader). Around an engine: `replicas`
  (several servers), `thoughts` (room for thinking), `batches`. What came of a request: `outcome`, `faults`.
- **Meters**, passed by every attempt: `attempts` (retries, pace, what is in flight), `budget`, `prices`, `tokens`,
  `tokenisers`; `journaled` writes each call once.
- **Models in this process**: `in_process`, `checkpoints`, `huggingface`, `local` (llama.cpp).
- **Scoring**: `scoring`, log-probabilities of given texts and entailment.
"""
