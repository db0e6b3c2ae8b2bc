"""Fork the processes of a service from one that has imported what they need, and fork them again when they die."""
