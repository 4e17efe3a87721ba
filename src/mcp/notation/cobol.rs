//! COBOL: `SELECT MY.Q ASSIGN TO QUEUE.` and `FD MY.Q VALUE OF Q.MAX.MESSAGES IS 20 ... 01 MY.Q.BUF PIC X(80).`
//!
//! The vertical dots that the document prints between the divisions mean nothing. The record of the `01` entry behind an FD
//! gives the record size.

use super::{Draft, Scanner, set_once};
use crate::Result;
use crate::mcp::FileParameters;

/// Reads all queue files of a text: each has a SELECT and an FD.
pub fn parse(text: &str) -> Result<Vec<FileParameters>> {
    let mut scanner = Scanner::new(text, Some('⋮'), None);
    let (mut selected, mut files) = (Vec::<String>::new(), Vec::<FileParameters>::new());
    loop {
        if scanner.take_word("SELECT") {
            selected.push(select(&mut scanner)?);
        } else if scanner.take_word("FD") {
            let at = scanner.position();
            let file = description(&mut scanner)?;
            if !selected.contains(&file.name) || files.iter().any(|other| other.name == file.name) {
                let found = format!("FD {}", file.name);
                return Err(at.error("an FD for a file that was selected", &found));
            }
            files.push(file);
        } else if scanner.at_end() && !selected.is_empty() {
            break;
        } else {
            return Err(scanner.expected("SELECT or FD"));
        }
    }
    let missing = |name: &&String| !files.iter().any(|file| file.name == **name);
    match selected.iter().find(missing) {
        Some(name) => Err(scanner.expected(&format!("FD {name}"))),
        None => Ok(files),
    }
}

fn select(scanner: &mut Scanner) -> Result<String> {
    let name = scanner.need_any_word("the name of the file after SELECT")?;
    scanner.need_word("ASSIGN", "after the name of the file")?;
    scanner.take_word("TO");
    scanner.need_word("QUEUE", "as the device of the file")?;
    scanner.need_sign('.', "at the end of SELECT")?;
    Ok(name)
}

fn description(scanner: &mut Scanner) -> Result<FileParameters> {
    let name = scanner.need_any_word("the name of the file after FD")?;
    let mut draft = Draft::default();
    while !scanner.take_sign('.') {
        let at = scanner.position();
        if scanner.take_word("VALUE") {
            scanner.need_word("OF", "after VALUE")?;
            scanner.need_word("Q.MAX.MESSAGES", "after VALUE OF")?;
            scanner.take_word("IS");
            let number = scanner.need_number("after Q.MAX.MESSAGES IS")?;
            set_once(&mut draft.max_messages, number, "Q.MAX.MESSAGES", at)?;
        } else if scanner.take_word("RESERVE") {
            let number = scanner.need_number("after RESERVE")?;
            scanner.need_word("ALTERNATE", "after the number of RESERVE")?;
            if !scanner.take_word("AREAS") && !scanner.take_word("AREA") {
                return Err(scanner.expected("AREAS after ALTERNATE"));
            }
            set_once(&mut draft.buffers, number, "RESERVE", at)?;
        } else if scanner.take_word("FILE") {
            scanner.need_word("CONTAINS", "after FILE")?;
            let number = scanner.need_number("after FILE CONTAINS")?;
            scanner.need_word("QUEUES", "after the number of FILE CONTAINS")?;
            set_once(&mut draft.family_size, number, "FILE CONTAINS", at)?;
        } else {
            return Err(scanner.expected("VALUE OF, RESERVE, FILE CONTAINS or '.'"));
        }
    }
    let at = scanner.position();
    draft.record_size = Some(record(scanner)?);
    draft.finish(&name, at, ["VALUE OF Q.MAX.MESSAGES", "PIC X(n)"])
}

/// `01 MY.Q.BUF PIC X(80).`
fn record(scanner: &mut Scanner) -> Result<u32> {
    scanner.need_word("01", "with the record behind the FD")?;
    scanner.need_any_word("the name of the record")?;
    if !scanner.take_word("PIC") && !scanner.take_word("PICTURE") {
        return Err(scanner.expected("PIC after the name of the record"));
    }
    scanner.take_word("IS");
    let at = scanner.position();
    let picture = scanner.need_any_word("X(n) after PIC")?;
    if !picture.bytes().all(|b| b.eq_ignore_ascii_case(&b'X')) {
        return Err(at.error("X(n) after PIC", &format!("{picture:?}")));
    }
    let mut size = picture.len() as u32;
    if scanner.take_sign('(') {
        let repeat = scanner.need_number("after X(")?;
        scanner.need_sign(')', "after the number of X(n)")?;
        size = (size - 1).checked_add(repeat).ok_or_else(|| {
            let expected = format!("a record of at most {} characters", u32::MAX);
            at.error(&expected, &format!("{picture}({repeat})"))
        })?;
    }
    scanner.need_sign('.', "at the end of the record")?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_column() {
        for (text, expected) in [
            (
                "SELECT Q ASSIGN TO DISK.",
                "line 1, column 20: expected QUEUE as the device of the file, found \"DISK\"",
            ),
            (
                "SELECT Q ASSIGN TO QUEUE.\nFD Q RESERVE TWO",
                "line 2, column 14: expected a number after RESERVE, found \"TWO\"",
            ),
            (
                "SELECT Q ASSIGN TO QUEUE.",
                "line 1, column 26: expected FD Q, found the end of the text",
            ),
            (
                "FD Q VALUE OF Q.MAX.MESSAGES IS 1. 01 R PIC X.",
                "line 1, column 4: expected an FD for a file that was selected, found FD Q",
            ),
            (
                "SELECT Q ASSIGN TO QUEUE. FD Q. 01 R PIC X(80).",
                "line 1, column 33: expected VALUE OF Q.MAX.MESSAGES for Q, found the end of its declaration",
            ),
            (
                "SELECT Q ASSIGN TO QUEUE. FD Q VALUE OF Q.MAX.MESSAGES IS 1. 01 R PIC 999.",
                "line 1, column 71: expected X(n) after PIC, found \"999\"",
            ),
            (
                "SELECT Q ASSIGN TO QUEUE. FD Q VALUE OF Q.MAX.MESSAGES IS 1. 01 R PIC XX(4294967295).",
                "line 1, column 71: expected a record of at most 4294967295 characters, found XX(4294967295)",
            ),
            ("", "line 1, column 1: expected SELECT or FD, found the end of the text"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text:?}");
        }
    }
}
