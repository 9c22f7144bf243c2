"""Several processes that play the lanes of one run."""
