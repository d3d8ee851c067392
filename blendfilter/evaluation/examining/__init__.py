"""Whether a model does what the pipeline asks: sample questions asked, replies counted, a server probed, advice."""
