"""Commands that work on the home and the database of a service, whether it runs or not."""
