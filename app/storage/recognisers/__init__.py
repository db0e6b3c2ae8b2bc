"""The recognisers that a service can use: what is known of each, where its file is, and the model it serves as."""
