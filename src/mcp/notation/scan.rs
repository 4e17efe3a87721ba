//! Words, numbers and signs of the old notations, each with its place.

use crate::{Error, Result};

/// Where something stands, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    line: usize,
    column: usize,
}

impl Position {
    pub(super) fn error(self, expected: &str, found: &str) -> Error {
        let Position { line, column } = self;
        Error::Invalid(format!(
            "line {line}, column {column}: expected {expected}, found {found}"
        ))
    }
}

/// The smallest part of a notation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// Letters, digits and what may stand between them: MY.Q, Q-FULL, A/B, 80.
    Word(String),
    Sign(char),
    End,
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Token::Word(word) => format!("{word:?}"),
            Token::Sign(sign) => format!("{:?}", sign.to_string()),
            Token::End => "the end of the text".into(),
        }
    }
}

/// A text as tokens.
#[derive(Debug)]
pub(super) struct Scanner {
    tokens: Vec<(Token, Position)>,
    next: usize,
}

impl Scanner {
    /// `skip` names a sign that means nothing (the dots that stand for left out lines), `comment` one that begins a comment.
    pub(super) fn new(text: &str, skip: Option<char>, comment: Option<char>) -> Self {
        let mut tokens = Vec::new();
        let mut end = Position { line: 1, column: 1 };
        for (line, row) in text.split('\n').enumerate() {
            let chars: Vec<char> = row.chars().collect();
            let mut at = 0;
            while at < chars.len() && Some(chars[at]) != comment {
                let position = Position {
                    line: line + 1,
                    column: at + 1,
                };
                let start = at;
                while at < chars.len() && in_word(&chars, at, start) {
                    at += 1;
                }
                if at > start {
                    tokens.push((Token::Word(chars[start..at].iter().collect()), position));
                    continue;
                }
                if !chars[at].is_whitespace() && Some(chars[at]) != skip {
                    tokens.push((Token::Sign(chars[at]), position));
                }
                at += 1;
            }
            end = Position {
                line: line + 1,
                column: chars.len() + 1,
            };
        }
        tokens.push((Token::End, end));
        Scanner { tokens, next: 0 }
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.next].0
    }

    pub(super) fn position(&self) -> Position {
        self.tokens[self.next].1
    }

    fn advance(&mut self) {
        self.next = (self.next + 1).min(self.tokens.len() - 1);
    }

    pub(super) fn at_end(&self) -> bool {
        *self.peek() == Token::End
    }

    /// The error that something else was expected here.
    pub(super) fn expected(&self, what: &str) -> Error {
        self.position().error(what, &self.peek().shown())
    }

    /// Takes the sign if it is next.
    pub(super) fn take_sign(&mut self, sign: char) -> bool {
        let found = *self.peek() == Token::Sign(sign);
        if found {
            self.advance();
        }
        found
    }

    /// The next sign, if it is one, without taking it.
    pub(super) fn peek_sign(&self) -> Option<char> {
        match self.peek() {
            Token::Sign(sign) => Some(*sign),
            _ => None,
        }
    }

    pub(super) fn need_sign(&mut self, sign: char, place: &str) -> Result<()> {
        if self.take_sign(sign) {
            Ok(())
        } else {
            Err(self.expected(&format!("{sign:?} {place}")))
        }
    }

    /// The next word, if it is one, without taking it.
    pub(super) fn peek_word(&self) -> Option<&str> {
        match self.peek() {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }

    /// Takes the word if it is next, in either case of letters.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = self.peek_word().is_some_and(|next| next.eq_ignore_ascii_case(word));
        if found {
            self.advance();
        }
        found
    }

    pub(super) fn need_word(&mut self, word: &str, place: &str) -> Result<()> {
        if self.take_word(word) {
            Ok(())
        } else {
            Err(self.expected(&format!("{word} {place}")))
        }
    }

    /// Takes any word.
    pub(super) fn need_any_word(&mut self, what: &str) -> Result<String> {
        let word = self.peek_word().ok_or_else(|| self.expected(what))?.to_owned();
        self.advance();
        Ok(word)
    }

    /// Takes a number.
    pub(super) fn need_number(&mut self, place: &str) -> Result<u32> {
        let expected = format!("a number {place}");
        let word = self.peek_word().filter(|word| word.bytes().all(|b| b.is_ascii_digit()));
        let word = word.ok_or_else(|| self.expected(&expected))?;
        let number = word
            .parse()
            .map_err(|_| self.expected(&format!("{expected} of at most {}", u32::MAX)))?;
        self.advance();
        Ok(number)
    }
}

/// A dot, dash, slash and the like belong to a word when letters or digits stand on both sides.
fn in_word(chars: &[char], at: usize, start: usize) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '#';
    let inner = |c: char| matches!(c, '.' | '-' | '/');
    plain(chars[at]) || at > start && inner(chars[at]) && chars.get(at + 1).is_some_and(|&next| plain(next))
}
