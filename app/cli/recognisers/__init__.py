"""Commands that list, add, pull, use and train recognisers."""
