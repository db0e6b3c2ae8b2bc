"""The service: tables, jobs that are written down, HTTP. It never imports `workers`."""
