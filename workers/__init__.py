"""How jobs are done. Nobody imports it."""
