"""`python -m workers`: a worker process."""

from app.imports import import_uncollected

if __name__ == "__main__":
    import_uncollected("workers.main").main()
