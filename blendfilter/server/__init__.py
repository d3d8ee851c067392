"""An index over HTTP, in the wire format of `dspy.ColBERTv2` and in batches."""
