"""`python -m workers`: a worker process."""

from app.imports import import_uncollected
from app.storage.private_files import make_files_private

if __name__ == "__main__":
    make_files_private()
    import_uncollected("workers.main").main()
