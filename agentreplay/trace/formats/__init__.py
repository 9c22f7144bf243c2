"""A module for each format: decoded JSON in, sessions out."""
