"""Offer mixed traffic to a service, at a rate that does not depend on how fast it answers."""
