"""Pages of one file each, which open from disk."""
