"""Requests with an `Idempotency-Key`: their answers, and what repeats them."""
