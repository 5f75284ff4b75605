"""What a column is called in other libraries."""

from dataclasses import dataclass

from backend.types import ModelSpec


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain decoding. `note` says what is lost; "" if nothing."""

    note: str = ""


#: Of a column that decided not to guess.
NOTHING_DRAFTED = Plain("Guessing gained nothing here, so this is plain decoding.")


@dataclass(frozen=True, slots=True)
class Lookup:
    """Prompt lookup: `k` tokens copied after a match of at most `ngram` tokens. `note`: why it
    stands for something else; "" if it does not.
    """

    k: int
    ngram: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """Speculation with the model `draft`, `k` tokens a round. `note` as above."""

    k: int
    draft: ModelSpec
    note: str = ""


#: What only some libraries have, as `Nothing.lacking` names it.
SUFFIX_DECODING = "suffix decoding"
EAGLE_3 = "EAGLE-3"


@dataclass(frozen=True, slots=True)
class Nothing:
    """Something that few libraries have, or none. `lacking` names it ("suffix decoding"); `instead`
    is the nearest thing that they have. `draft`: the trained draft that it needs; "": none.
    """

    lacking: str
    instead: Lookup
    draft: str = ""


Equivalent = Plain | Lookup | Draft | Nothing
