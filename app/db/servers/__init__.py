"""Keep away from a server of PostgreSQL that a failover left behind."""
