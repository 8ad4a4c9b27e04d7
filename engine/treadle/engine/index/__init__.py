"""The index of the runs: a projection of their documents, beside the engine. It decides nothing."""
