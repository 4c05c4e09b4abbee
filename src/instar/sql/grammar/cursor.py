"""A position in a list of tokens, and the few moves that every part of the grammar is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from instar import errors
from instar.sql.grammar.keywords import NOT_A_NAME
from instar.sql.grammar.lexer import END, NUMBER, OPERATOR, QUOTED, ROWS, STRING, WORD, Token

T = TypeVar("T")


class Cursor:
    """Reads `tokens` from `index` on. `take...` consume or raise a syntax error, `try_...` consume or return false."""

    def __init__(self, text: str, tokens: list[Token], index: int = 0) -> None:
        self.text = text
        self.tokens = tokens
        self.index = index

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    @property
    def position(self) -> int:
        """Of the current token, 1-based."""
        return self.tokens[self.index].start + 1

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.index + ahead, len(self.tokens) - 1)]

    # --- words and operators ---

    def at(self, *words: str) -> bool:
        """Whether the next tokens are these key words."""
        for offset, word in enumerate(words):
            token = self.peek(offset)
            if token.kind != WORD or token.value != word:
                return False
        return True

    def at_any(self, words: frozenset[str] | tuple[str, ...]) -> bool:
        token = self.tokens[self.index]
        return token.kind == WORD and token.value in words

    def at_operator(self, symbol: str) -> bool:
        token = self.tokens[self.index]
        return token.kind == OPERATOR and token.value == symbol

    def try_words(self, *words: str) -> bool:
        if self.at(*words):
            self.index += len(words)
            return True
        return False

    def try_any(self, *words: str) -> str | None:
        token = self.tokens[self.index]
        if token.kind == WORD and token.value in words:
            self.index += 1
            return token.value
        return None

    def try_operator(self, symbol: str) -> bool:
        token = self.tokens[self.index]
        if token.kind == OPERATOR and token.value == symbol:
            self.index += 1
            return True
        return False

    def take_words(self, *words: str) -> None:
        for word in words:
            if not self.try_words(word):
                self.fail()

    def take_operator(self, symbol: str) -> None:
        if not self.try_operator(symbol):
            self.fail()

    # --- names and constants ---

    def at_name(self) -> bool:
        """Whether the next token may name a table or column."""
        token = self.tokens[self.index]
        return token.kind == QUOTED or (token.kind == WORD and token.value not in NOT_A_NAME)

    def take_name(self) -> str:
        if not self.at_name():
            self.fail()
        return self.advance().value

    def take_label(self) -> str:
        """Any word at all: after AS or a dot."""
        if self.token.kind not in (WORD, QUOTED):
            self.fail()
        return self.advance().value

    def take_names(self) -> tuple[str, ...]:
        """(name, ...)"""
        self.take_operator("(")
        names = self.comma_list(self.take_name)
        self.take_operator(")")
        return tuple(names)

    def take_integer(self) -> int:
        """An integer with an optional sign."""
        negative = self.try_operator("-")
        if not negative:
            self.try_operator("+")
        token = self.token
        if token.kind != NUMBER or not token.value.isdigit():
            self.fail()
        self.index += 1
        if len(token.value) > 30:
            raise errors.error(errors.NUMERIC_OUT_OF_RANGE, "integer out of range", position=token.start + 1)
        return -int(token.value) if negative else int(token.value)

    def take_string(self) -> str:
        if self.token.kind != STRING:
            self.fail()
        return self.advance().value

    # --- moves ---

    def advance(self) -> Token:
        token = self.tokens[self.index]
        if token.kind != END:
            self.index += 1
        return token

    def comma_list(self, item: Callable[[], T]) -> list[T]:
        items = [item()]
        while self.try_operator(","):
            items.append(item())
        return items

    def at_end(self) -> bool:
        """At the end of the statement."""
        token = self.tokens[self.index]
        return token.kind == END or (token.kind == OPERATOR and token.value == ";")

    def fail(self) -> NoReturn:
        """42601 at the current token."""
        raise self.syntax_error(self.token)

    def syntax_error(self, token: Token) -> errors.Error:
        if token.kind == END:
            message = "syntax error at end of input"
        else:
            end = token.start + 1 if token.kind == ROWS else token.end
            message = f'syntax error at or near "{self.text[token.start : end][:200]}"'
        return errors.error(errors.SYNTAX_ERROR, message, position=token.start + 1)
