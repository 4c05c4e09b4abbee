"""Which entry a call means: PostgreSQL's rules for operators and functions (its manual, chapter 10).

An argument of type unknown is a literal, NULL or parameter whose type the call decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from instar import errors
from instar.sql.functions.model import (
    COMMON,
    Aggregate,
    Argument,
    Entry,
    Function,
    Polymorphic,
    Resolution,
    WindowFunction,
)
from instar.sql.functions.registry import FUNCTIONS, OPERATORS
from instar.types import STRINGS, TEXT, TIMESTAMPS, UNKNOWN, Kind, Type
from instar.values import cast_context, category, is_preferred

_HINTS = {
    errors.UNDEFINED_FUNCTION: "No {what} matches the given name and argument type{s}. "
    "You might need to add explicit type casts.",
    errors.AMBIGUOUS_FUNCTION: "Could not choose a best candidate {what}. You might need to add explicit type casts.",
}

# Names of PostgreSQL that are asked for and absent, because the two engines could not be made to agree or because
# Instar has no type for the answer: 0A000 rather than "does not exist".
UNSUPPORTED = frozenset(
    "~ ~* !~ !~* @@ @? ?| ?& similar_to regexp_replace regexp_match regexp_matches regexp_like regexp_count "
    "regexp_substr regexp_split_to_array regexp_split_to_table to_char to_date to_number age justify_days "
    "justify_hours justify_interval make_interval format array_agg json_agg json_object_agg "
    "to_json row_to_json percentile_cont "
    "percentile_disc mode unnest array_length corr covar_pop covar_samp regr_slope regr_intercept to_tsvector "
    "to_tsquery jsonb_path_query xmlagg convert_to convert_from set_config current_setting json_build_object "
    "json_build_array jsonb_each jsonb_each_text "
    "string_to_array array_to_string clock_timestamp quote_ident quote_literal "
    "current_time localtime system_user timeofday".split()
)


def lookup(name: str) -> tuple[Entry, ...]:
    """All functions (not operators) of this name; empty if there is none."""
    return FUNCTIONS.get(name, ())


def is_aggregate(name: str) -> bool:
    """Whether `name` is an aggregate function."""
    return any(isinstance(entry, Aggregate) for entry in lookup(name))


def is_window(name: str) -> bool:
    """Whether `name` is a window function that is no aggregate: it needs OVER."""
    return any(isinstance(entry, WindowFunction) for entry in lookup(name))


def resolve_function(name: str, types: Sequence[Type], *, position: int | None = None) -> Resolution:
    """The function, aggregate or window function that `name(types)` means; count(*) has no types.

    Errors: 42883 no such function, 42725 several fit equally well, 0A000 one of PostgreSQL's that Instar lacks.
    """
    signature = f"{name}({', '.join(str(_bare(type_)) for type_ in types)})"
    candidates = FUNCTIONS.get(name)
    if candidates is None and name in UNSUPPORTED:
        raise errors.unsupported(f"function {name}", position=position)
    found = _select(candidates or (), tuple(types))
    if name == "to_char" and types and types[0].kind is Kind.UNKNOWN:
        found = errors.AMBIGUOUS_FUNCTION  # PostgreSQL has it of numbers, too
    if isinstance(found, Resolution):
        return found
    if name in UNSUPPORTED and found == errors.UNDEFINED_FUNCTION:
        raise errors.unsupported(f"function {signature}", position=position)
    wording = "does not exist" if found == errors.UNDEFINED_FUNCTION else "is not unique"
    raise errors.error(
        found,
        f"function {signature} {wording}",
        hint=_HINTS[found].format(what="function", s="s"),
        position=position,
    )


_TIMES = {*TIMESTAMPS, Kind.DATE}
# Of these PostgreSQL has more than numbers' (of intervals and points), among which nothing untyped decides.
_OF_INTERVALS = {("*", 2), ("/", 2), ("-", 1)}


def resolve_operator(symbol: str, types: Sequence[Type], *, position: int | None = None) -> Resolution:
    """The operator that `symbol` means between `types` (one: prefix). LIKE is `~~`, ILIKE `~~*`, with `!` for NOT.

    Errors: 42883 no such operator, 42725 several fit equally well, 0A000 one of PostgreSQL's that Instar lacks.
    """
    candidates = tuple(entry for entry in OPERATORS.get(symbol, ()) if len(entry.arguments) == len(types))
    if not candidates and symbol in UNSUPPORTED:
        raise errors.unsupported(f"operator {symbol}", position=position)
    kinds = [type_.kind for type_ in types]
    if symbol == "-" and len(kinds) == 2 and kinds != [Kind.DATE, Kind.DATE] and _TIMES.issuperset(kinds):
        raise errors.unsupported("the difference of timestamps (type interval)", position=position)
    if (symbol, len(types)) in _OF_INTERVALS and all(type_.kind is Kind.UNKNOWN for type_ in types):
        found: Resolution | str = errors.AMBIGUOUS_FUNCTION
    else:
        found = _select(candidates, tuple(types), operator=True)
    if isinstance(found, Resolution):
        assert isinstance(found.entry, Function)
        return found
    names = [str(_bare(type_)) for type_ in types]
    text = f"{symbol} {names[0]}" if len(names) == 1 else f"{names[0]} {symbol} {names[1]}"
    wording = "operator does not exist" if found == errors.UNDEFINED_FUNCTION else "operator is not unique"
    raise errors.error(
        found,
        f"{wording}: {text}",
        hint=_HINTS[found].format(what="operator", s="" if len(names) == 1 else "s"),
        position=position,
    )


def common_type(types: Sequence[Type], construct: str, *, position: int | None = None) -> Type:
    """The type of CASE, COALESCE, UNION, VALUES and the like (manual §10.5); `construct` names it in errors.

    All unknown: text. A modifier survives if all have it. Errors: 42804 "<construct> types a and b cannot be matched".
    """
    known = [type_ for type_ in types if type_.kind is not Kind.UNKNOWN]
    if not known:
        return TEXT
    chosen = known[0]
    for type_ in known[1:]:
        if type_.kind is chosen.kind:
            continue
        if category(type_) != category(chosen):
            raise errors.error(
                errors.DATATYPE_MISMATCH,
                f"{construct} types {_bare(chosen)} and {_bare(type_)} cannot be matched",
                position=position,
            )
        widens = cast_context(chosen, type_) == "implicit"
        narrows = cast_context(type_, chosen) == "implicit"
        if widens and not is_preferred(chosen) and (not narrows or is_preferred(type_)):
            chosen = type_
    if all(type_ == chosen for type_ in types):
        return chosen
    return _bare(chosen)


def _bare(type_: Type) -> Type:
    return Type(type_.kind)


def _select(candidates: Sequence[Entry], types: tuple[Type, ...], operator: bool = False) -> Resolution | str:
    """The chosen entry, or the SQLSTATE of why there is none."""
    signatures: list[tuple[Entry, tuple[Argument, ...]]] = []
    for entry in candidates:
        signature = _expand(entry, types)
        if signature is not None:
            signatures.append((entry, signature))
    exact = _exact(signatures, types, operator)
    if exact is not None:
        return _resolution(*exact, types)
    fitting = [pair for pair in signatures if all(map(_coercible, types, pair[1]))]
    if not fitting:
        return errors.UNDEFINED_FUNCTION
    fitting = _narrow(fitting, types)
    if len(fitting) > 1:
        return errors.AMBIGUOUS_FUNCTION
    return _resolution(*fitting[0], types)


def _expand(entry: Entry, types: tuple[Type, ...]) -> tuple[Argument, ...] | None:
    """The entry's argument types for a call with this many arguments, common ones replaced by their common type."""
    signature = entry.arguments
    if isinstance(entry, Function) and entry.variadic and len(types) >= len(signature):
        signature = signature[:-1] + (signature[-1],) * (len(types) - len(signature) + 1)
    if len(signature) != len(types):
        return None
    if COMMON in signature:
        shared = [type_ for type_, argument in zip(types, signature, strict=True) if argument is COMMON]
        try:
            common = common_type(shared, entry.name)
        except errors.Error:
            return None
        signature = tuple(common if argument is COMMON else argument for argument in signature)
    return signature


Pair = tuple[Entry, tuple[Argument, ...]]


def _exact(signatures: list[Pair], types: tuple[Type, ...], operator: bool) -> Pair | None:
    wanted = [type_.kind for type_ in types]
    if operator and len(types) == 2 and (wanted[0] is Kind.UNKNOWN) != (wanted[1] is Kind.UNKNOWN):
        # An unknown beside a known operand is first taken to be of the same type.
        wanted = [wanted[0] if wanted[1] is Kind.UNKNOWN else wanted[1]] * 2
    for pair in signatures:
        if [argument.kind if isinstance(argument, Type) else None for argument in pair[1]] == wanted:
            return pair
    return None


def _coercible(type_: Type, argument: Argument) -> bool:
    if isinstance(argument, Polymorphic) or type_.kind in (Kind.UNKNOWN, argument.kind):
        return True
    return cast_context(type_, argument) == "implicit"


def _narrow(pairs: list[Pair], types: tuple[Type, ...]) -> list[Pair]:
    """Steps 4.c to 4.f of the manual's §10.3: most exact, most preferred, then what unknown arguments may be."""
    known = [i for i, type_ in enumerate(types) if type_.kind is not Kind.UNKNOWN]
    unknown = [i for i, type_ in enumerate(types) if type_.kind is Kind.UNKNOWN]

    def exact(pair: Pair, i: int) -> bool:
        argument = pair[1][i]
        return isinstance(argument, Type) and argument.kind is types[i].kind

    def preferred(pair: Pair, i: int) -> bool:
        argument = pair[1][i]
        return isinstance(argument, Type) and is_preferred(argument) and category(argument) == category(types[i])

    pairs = _best(pairs, lambda pair: sum(exact(pair, i) for i in known))
    if len(pairs) > 1:
        pairs = _best(pairs, lambda pair: sum(exact(pair, i) or preferred(pair, i) for i in known))
    if len(pairs) > 1 and unknown:
        pairs = _by_category(pairs, unknown)
        if len(pairs) > 1 and known and len({types[i].kind for i in known}) == 1:
            same = tuple(types[known[0]] for _ in types)
            left = [pair for pair in pairs if all(map(_coercible, same, pair[1]))]
            pairs = left if len(left) == 1 else pairs
    return pairs


def _best(pairs: list[Pair], score: object) -> list[Pair]:
    assert callable(score)
    scores = [score(pair) for pair in pairs]
    return [pair for pair, value in zip(pairs, scores, strict=True) if value == max(scores)]


def _by_category(pairs: list[Pair], unknown: list[int]) -> list[Pair]:
    """Keep what fits the category of each unknown argument: string if any candidate takes one, else the shared one."""
    for i in unknown:
        arguments = [pair[1][i] for pair in pairs]
        categories = {category(argument) if isinstance(argument, Type) else "P" for argument in arguments}
        if "S" in categories:
            chosen = "S"
        elif len(categories) == 1:
            chosen = categories.pop()
        else:
            return pairs
        kept = [p for p in pairs if isinstance(a := p[1][i], Type) and category(a) == chosen] or pairs
        favoured = [p for p in kept if isinstance(a := p[1][i], Type) and is_preferred(a)]
        pairs = favoured or kept
    return pairs


def _resolution(entry: Entry, signature: tuple[Argument, ...], types: tuple[Type, ...]) -> Resolution:
    """An argument of the right kind keeps its modifiers: there is nothing to cast; so does a varchar for a text."""
    arguments = []
    for type_, argument in zip(types, signature, strict=True):
        if isinstance(argument, Polymorphic):
            arguments.append(TEXT if type_ == UNKNOWN else type_)
        elif type_.kind is argument.kind or (type_.kind in STRINGS and argument.kind in STRINGS):
            arguments.append(type_)
        else:
            arguments.append(argument)
    return Resolution(entry, tuple(arguments), entry.result_type(arguments))
