"""Open-set identification: who a face is, or nobody; and the rate at which strangers are named."""
