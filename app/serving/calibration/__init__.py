"""Measure what the scores of a deployment mean, and notice when that no longer holds."""
