"""Text that every database can keep."""

from typing import Annotated

from pydantic import StringConstraints

NO_NUL = r"^[^\x00]*$"  # PostgreSQL keeps no zero byte
Word = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=NO_NUL)]
Note = Annotated[str, StringConstraints(max_length=4096, pattern=NO_NUL)]
TaskName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
CollectionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,255}$")]
