//! `?FILE` cards: `?FI MY.Q QUEUE Q.MAX.MESSAGES=20 BUFFERS=3 RECORD.SIZE=80;`

use super::{Draft, Scanner, set_once};
use crate::Result;
use crate::mcp::FileParameters;

/// Reads all cards of a text. A card begins with `?FI` or `?FILE`; the semicolon at its end can be left out.
pub fn parse(text: &str) -> Result<Vec<FileParameters>> {
    let mut scanner = Scanner::new(text, None, None);
    let mut files = vec![card(&mut scanner)?];
    while !scanner.at_end() {
        files.push(card(&mut scanner)?);
    }
    Ok(files)
}

fn card(scanner: &mut Scanner) -> Result<FileParameters> {
    scanner.need_sign('?', "at the beginning of a card")?;
    if !scanner.take_word("FI") && !scanner.take_word("FILE") {
        return Err(scanner.expected("FI or FILE after '?'"));
    }
    let name = scanner.need_any_word("the name of the file")?;
    scanner.need_word("QUEUE", "as the device of the file")?;
    let mut draft = Draft::default();
    loop {
        scanner.take_sign(',');
        let at = scanner.position();
        let Some(keyword) = scanner.peek_word().map(str::to_ascii_uppercase) else {
            break;
        };
        let field = match keyword.as_str() {
            "Q.MAX.MESSAGES" => &mut draft.max_messages,
            "Q.FAMILY.SIZE" => &mut draft.family_size,
            "BUFFERS" | "Q.BUFFERS" => &mut draft.buffers,
            "RECORD.SIZE" => &mut draft.record_size,
            _ => {
                return Err(scanner.expected("Q.MAX.MESSAGES, Q.FAMILY.SIZE, BUFFERS or RECORD.SIZE"));
            }
        };
        scanner.take_word(&keyword);
        scanner.need_sign('=', &format!("after {keyword}"))?;
        let value = scanner.need_number(&format!("after {keyword}="))?;
        set_once(field, value, &keyword, at)?;
    }
    let at = scanner.position();
    if !scanner.take_sign(';') && !scanner.at_end() && !matches!(scanner.peek_sign(), Some('?')) {
        return Err(scanner.expected("a keyword, ';' or the next card"));
    }
    draft.finish(&name, at, ["Q.MAX.MESSAGES", "RECORD.SIZE"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_column() {
        for (text, expected) in [
            (
                "?FI MY.Q QUEUE Q.MAX.MESSAGES=X",
                "line 1, column 31: expected a number after Q.MAX.MESSAGES=, found \"X\"",
            ),
            (
                "FI MY.Q",
                "line 1, column 1: expected '?' at the beginning of a card, found \"FI\"",
            ),
            (
                "?FI MY.Q DISK",
                "line 1, column 10: expected QUEUE as the device of the file, found \"DISK\"",
            ),
            (
                "?FI MY.Q QUEUE BUFERS=3",
                "line 1, column 16: expected Q.MAX.MESSAGES, Q.FAMILY.SIZE, BUFFERS or RECORD.SIZE, found \"BUFERS\"",
            ),
            (
                "?FI Q QUEUE BUFFERS=3\n  BUFFERS=4",
                "line 2, column 3: expected BUFFERS only once, found it again",
            ),
            (
                "?FI Q QUEUE Q.MAX.MESSAGES=3;",
                "line 1, column 29: expected RECORD.SIZE for Q, found the end of its declaration",
            ),
            (
                "?FI Q QUEUE )",
                "line 1, column 13: expected a keyword, ';' or the next card, found \")\"",
            ),
            (
                "",
                "line 1, column 1: expected '?' at the beginning of a card, found the end of the text",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text:?}");
        }
    }
}
