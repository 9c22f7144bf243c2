"""What our own code costs, beside what it can't cost less than; docs/performance.md tells more."""
