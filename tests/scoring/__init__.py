"""Tests of scoring, on runs whose truth is known because they were made up: `recorded` makes them."""
