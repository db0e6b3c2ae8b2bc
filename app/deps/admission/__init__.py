"""Admit as many requests as the machine can answer in time, and refuse the others early."""
