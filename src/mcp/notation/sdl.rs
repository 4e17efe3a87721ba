//! SDL: `FILE MY.Q (DEVICE=QUEUE(20), BUFFERS=3, RECORDS=80);`
//!
//! As printed in the document: the comma before BUFFERS may be missing, and so may the blank between FILE and the name
//! ("FILE.MY.QFF(").

use super::{Draft, Scanner, set_once};
use crate::Result;
use crate::mcp::FileParameters;

/// Reads all FILE declarations of a text; `%` begins a comment.
pub fn parse(text: &str) -> Result<Vec<FileParameters>> {
    let mut scanner = Scanner::new(text, None, Some('%'));
    let mut files = vec![declaration(&mut scanner)?];
    while !scanner.at_end() {
        files.push(declaration(&mut scanner)?);
    }
    Ok(files)
}

fn declaration(scanner: &mut Scanner) -> Result<FileParameters> {
    let name = file_name(scanner)?;
    scanner.need_sign('(', "after the name of the file")?;
    scanner.need_word("DEVICE", "as the first attribute")?;
    scanner.need_sign('=', "after DEVICE")?;
    scanner.need_word("QUEUE", "as the device of the file")?;
    let mut draft = Draft {
        max_messages: Some(in_brackets(scanner, "QUEUE")?),
        ..Draft::default()
    };
    if scanner.take_word("FAMILY") {
        draft.family_size = Some(in_brackets(scanner, "FAMILY")?);
    }
    loop {
        scanner.take_sign(',');
        let at = scanner.position();
        let Some(keyword) = scanner.peek_word().map(str::to_ascii_uppercase) else {
            break;
        };
        let field = match keyword.as_str() {
            "BUFFERS" => &mut draft.buffers,
            "RECORDS" => &mut draft.record_size,
            _ => return Err(scanner.expected("BUFFERS, RECORDS or ')'")),
        };
        scanner.take_word(&keyword);
        scanner.need_sign('=', &format!("after {keyword}"))?;
        let value = scanner.need_number(&format!("after {keyword}="))?;
        set_once(field, value, &keyword, at)?;
    }
    let at = scanner.position();
    scanner.need_sign(')', "at the end of the attributes")?;
    if !scanner.take_sign(';') && !scanner.at_end() {
        return Err(scanner.expected("';' after the declaration"));
    }
    draft.finish(&name, at, ["QUEUE(n)", "RECORDS"])
}

fn file_name(scanner: &mut Scanner) -> Result<String> {
    const GLUED: &str = "FILE.";
    let glued = scanner.peek_word().and_then(|word| {
        let (start, name) = word.split_at_checked(GLUED.len())?;
        start.eq_ignore_ascii_case(GLUED).then(|| name.to_owned())
    });
    match glued {
        Some(name) => {
            scanner.need_any_word("FILE")?;
            Ok(name)
        }
        None => {
            scanner.need_word("FILE", "at the beginning of a declaration")?;
            scanner.need_any_word("the name of the file")
        }
    }
}

fn in_brackets(scanner: &mut Scanner, keyword: &str) -> Result<u32> {
    scanner.need_sign('(', &format!("after {keyword}"))?;
    let number = scanner.need_number(&format!("after {keyword}("))?;
    scanner.need_sign(')', &format!("after the number of {keyword}"))?;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_column() {
        for (text, expected) in [
            (
                "FILE Q (DEVICE=QUEUE(n), BUFFERS=2, RECORDS=80);",
                "line 1, column 22: expected a number after QUEUE(, found \"n\"",
            ),
            (
                "FILE Q (DEVICE=DISK);",
                "line 1, column 16: expected QUEUE as the device of the file, found \"DISK\"",
            ),
            (
                "FILE Q (DEVICE=QUEUE(1), SIZE=2);",
                "line 1, column 26: expected BUFFERS, RECORDS or ')', found \"SIZE\"",
            ),
            (
                "FILE Q (DEVICE=QUEUE(1) FAMILY(2) BUFFERS=1\n",
                "line 2, column 1: expected ')' at the end of the attributes, found the end of the text",
            ),
            (
                "FILE Q (DEVICE=QUEUE(0), RECORDS=80);",
                "line 1, column 36: expected parameters within their limits, found max_messages must be 1 to 16777216, not 0",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text:?}");
        }
    }
}
