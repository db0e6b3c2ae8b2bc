"""Text that every database can keep."""

from typing import Annotated

from pydantic import Field, StringConstraints

from app.deps import examples

NO_NUL = r"^[^\x00]*$"  # PostgreSQL keeps no zero byte
Word = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=NO_NUL)]
Note = Annotated[str, StringConstraints(max_length=4096, pattern=NO_NUL)]
TaskName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$"),
    Field(description="a criterion of likeness", examples=["identity"]),
]
CollectionName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,255}$"),
    Field(description="a collection, by the id that its client chose", examples=[examples.COLLECTION]),
]
FaceName = Annotated[Word, Field(description="a face's id", examples=[examples.FACE])]
ModelName = Annotated[Word, Field(max_length=64, description="a model's id", examples=[examples.MODEL])]
