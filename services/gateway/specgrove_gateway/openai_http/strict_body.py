"""How every JSON body is checked: strictly, at a bounded cost, and with the name of the wrong field."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from specgrove.errors import InvalidInput

_MAX_PROBLEMS_SHOWN = 3
# Pydantic notes a problem for every unknown key, and a million of them take seconds: keys are counted first.
_MAX_KEYS = 64
STRING, LIST = "<string>", "<list>"  # the branches of "a string or a list" in pydantic's paths
StringOrList = Discriminator(lambda value: LIST if isinstance(value, list) else STRING)


class StrictBody(BaseModel):
    """Every type as it is in JSON, no unknown field, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _MAX_KEYS:
            raise PydanticCustomError(
                "too_many_keys",
                "an object holds {num_keys} fields; at most {max_keys} are read",
                {"num_keys": len(value), "max_keys": _MAX_KEYS},
            )
        return value


_BodyT = TypeVar("_BodyT", bound=StrictBody)


def validated(model: type[_BodyT], body: dict[str, Any]) -> _BodyT:
    """`body` as a `model`. Raises InvalidInput naming the first wrong field."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_PROBLEMS_SHOWN]
        fields = [_field_name(problem["loc"], problem["type"] == "extra_forbidden") for problem in problems]
        texts = [
            f"{field or ('an empty name' if problem['loc'] else 'body')}: {_text(problem)}"
            for field, problem in zip(fields, problems, strict=True)
        ]
        raise InvalidInput("; ".join(texts), field=fields[0] if problems[0]["loc"] else None) from None


def _text(problem: ErrorDetails) -> str:
    return "unknown field" if problem["type"] == "extra_forbidden" else problem["msg"].replace(" after validation", "")


def _field_name(location: tuple[int | str, ...], is_unknown: bool) -> str:
    """`messages.0.content.1.text`: pydantic's path without the branches of unions, which clients do not know."""
    ours, theirs = (location[:-1], location[-1:]) if is_unknown else (location, ())  # an unknown name is kept as it is
    return ".".join(str(part) for part in (*(part for part in ours if part not in (STRING, LIST)), *theirs))[:200]
