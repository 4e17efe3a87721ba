//! Holds the layering rule of `src/lib.rs`: each file of `src` is searched for words that belong to another layer.

use std::fs;
use std::path::{Path, PathBuf};

const QUEUES: [&str; 5] = ["aq", "conq", "ring", "mcp", "qewqew"];
const HOMES_OF_UNSAFE: [&str; 3] = ["os/", "shared/region.rs", "python/buffer.rs"];
/// Words inside a region come from `shared::sync`, so that loom can replace them. The others here are no such words: the
/// region copies single bytes, the roster and the outer layers keep counters of this process.
const HOMES_OF_ATOMICS: [&str; 5] = [
    "shared/sync.rs",
    "shared/region.rs",
    "shared/roster.rs",
    "os/",
    "python/",
];
/// What a queue's `layout.rs` and `control.rs` must not name: they are arithmetic, nothing else.
const IMPURE: [&str; 9] = [
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::thread",
    "crate::os",
    "crate::shared::region",
    "crate::shared::sync",
    "crate::shared::lock",
];
/// What a queue must not call: it takes `now` and returns, waiting and time are others' business.
const WAITING: [&str; 3] = ["Instant::now", "SystemTime::now", "thread::sleep"];

#[test]
fn every_file_keeps_to_its_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = rust_files(&root);
    assert!(
        files.len() >= 5,
        "only {} files found under {}",
        files.len(),
        root.display()
    );
    let broken: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let name = file.strip_prefix(&root).unwrap().to_str().unwrap();
            violations(name, &fs::read_to_string(file).unwrap())
        })
        .collect();
    assert!(broken.is_empty(), "the layering rule is broken:\n{}", broken.join("\n"));
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// What the file `name` (relative to `src`) has that belongs elsewhere.
fn violations(name: &str, source: &str) -> Vec<String> {
    let code = code_only(source);
    let paths = paths(&code);
    let mut found = Vec::new();
    let mut forbid = |is_forbidden: bool, what: &str, why: &str| {
        if is_forbidden && paths.iter().any(|path| contains_path(path, what)) {
            found.push(format!("src/{name}: `{what}`: {why}"));
        }
    };
    let within = |homes: &[&str]| homes.iter().any(|home| name.starts_with(home));
    let queue = QUEUES.into_iter().find(|queue| name.starts_with(&format!("{queue}/")));

    forbid(!within(&["python/"]), "pyo3", "only src/python knows Python");
    for system in ["libc", "rustix"] {
        forbid(!within(&["os/"]), system, "only src/os calls the system");
    }
    for word in ["unsafe", "unsafe_code"] {
        forbid(!within(&HOMES_OF_UNSAFE), word, "unsafe has three homes");
    }
    for word in ["std::sync::atomic", "core::sync::atomic", "loom::sync", "loom::thread"] {
        forbid(!within(&HOMES_OF_ATOMICS), word, "atomics come from shared::sync");
    }
    for other in QUEUES.into_iter().filter(|other| Some(*other) != queue) {
        for other in [format!("crate::{other}"), format!("super::super::{other}")] {
            forbid(queue.is_some(), &other, "a queue never imports another");
            forbid(within(&["shared/", "os/"]), &other, "the lower layers know no queue");
        }
    }
    forbid(
        !within(&["python/", "lib.rs"]),
        "crate::python",
        "nothing below knows Python",
    );
    forbid(within(&["os/"]), "crate::shared", "src/os is the lowest layer");
    if queue.is_some() {
        for word in WAITING {
            forbid(true, word, "an algorithm takes `now` and returns");
        }
        if name.ends_with("/layout.rs") || name.ends_with("/control.rs") {
            for word in IMPURE {
                forbid(true, word, "layout and control are pure");
            }
            for width in ["AtomicU32", "AtomicU64", "AtomicUsize", "AtomicBool", "Region"] {
                forbid(true, width, "layout and control are pure");
            }
        }
    }
    found
}

/// Whether `what` occurs in `path` as whole segments: `crate::aq` is in `crate::aq::Queue`, not in `crate::aquifer`.
fn contains_path(path: &str, what: &str) -> bool {
    format!("::{path}::").contains(&format!("::{what}::"))
}

/// The code without comments, texts and the unit tests at the foot of the file; line breaks stay.
fn code_only(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let mut code = String::new();
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(guard) = raw_text(rest) {
            let opened = rest.find('"').unwrap() + 1;
            rest[opened..]
                .find(&guard)
                .map_or(rest.len(), |end| opened + end + guard.len())
        } else if next == '"' {
            quoted(rest, '"')
        } else if next == '\'' && (rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'')) {
            quoted(rest, '\'')
        } else {
            0
        };
        if skipped > 0 {
            code.push(' ');
            rest = &rest[skipped..];
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    code
}

/// What ends the raw text that begins here, if one does: `"##` for `r##"`.
fn raw_text(rest: &str) -> Option<String> {
    let after = rest
        .strip_prefix("r")
        .or_else(|| rest.strip_prefix("br"))
        .or_else(|| rest.strip_prefix("cr"))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..]
        .starts_with('"')
        .then(|| format!("\"{}", "#".repeat(hashes)))
}

/// The length of the text that begins here with `quote`.
fn quoted(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (index, next) in rest.char_indices().skip(1) {
        match next {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if next == quote => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Every path and word of the code; `crate::{aq::Queue, shared}` gives `crate::aq::Queue` and `crate::shared`.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    // The path in front of each open brace, empty for a brace that opens a block.
    let mut prefixes: Vec<String> = Vec::new();
    let mut current = String::new();
    for token in tokens(code) {
        match token.as_str() {
            "{" => prefixes.push(if current.ends_with("::") {
                std::mem::take(&mut current)
            } else {
                String::new()
            }),
            "}" => drop(prefixes.pop()),
            "::" => current.push_str("::"),
            word if is_word(word) => {
                if !current.ends_with("::") {
                    current.clear();
                }
                current.push_str(word);
                found.push(format!("{}{current}", prefixes.concat()));
            }
            _ => current.clear(),
        }
    }
    found
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single marks.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut may_continue = false;
    for next in code.chars() {
        let is_part_of_word = next.is_alphanumeric() || next == '_';
        match tokens.last_mut() {
            Some(last) if may_continue && is_part_of_word && last.chars().all(|c| c.is_alphanumeric() || c == '_') => {
                last.push(next);
            }
            Some(last) if may_continue && next == ':' && last == ":" => last.push(next),
            _ if next.is_whitespace() => {}
            _ => tokens.push(next.to_string()),
        }
        may_continue = !next.is_whitespace();
    }
    tokens
}

#[test]
fn the_search_finds_what_it_must() {
    let bad = [
        ("aq/mod.rs", "use pyo3::prelude::*;"),
        ("lib.rs", "fn f() -> pyo3::PyResult<()> { Ok(()) }"),
        ("shared/roster.rs", "let fd = unsafe_free(libc::open());"),
        ("ring/queue.rs", "use rustix::fs::{open, OFlags};"),
        ("shared/lock.rs", "let x = unsafe { *p };"),
        ("python/aq.rs", "#![allow(unsafe_code)]"),
        ("ring/queue.rs", "use crate::aq::Queue;"),
        (
            "ring/queue.rs",
            "use crate::{shared::region::Region, aq::{Queue, Item}};",
        ),
        ("conq/a/b.rs", "use super::super::mcp;"),
        ("shared/region.rs", "impl From<crate::qewqew::Chunk> for Region {}"),
        ("os/futex.rs", "use crate::shared::sync::AtomicU32;"),
        ("aq/writer.rs", "use std::sync::atomic::AtomicU32;"),
        ("aq/writer.rs", "use std::{fmt, sync::{Arc, atomic::AtomicU32}};"),
        ("aq/writer.rs", "let now = std::time::Instant::now();"),
        ("aq/layout.rs", "use crate::shared::sync::AtomicU32;"),
        ("ring/control.rs", "fn f(word: &AtomicU32) {}"),
        ("mcp/layout.rs", "use std::io::Read;"),
        ("mcp/layout.rs", "fn f(region: &Region) {}"),
        ("mcp/queue.rs", "use crate::python::error;"),
        ("mcp/mod.rs", "#[cfg(test)]\nmod tests;\nuse pyo3::prelude::*;"),
        ("mcp/queue.rs", "let text = r#\"quoted \" here\"#; unsafe { f() }"),
        ("mcp/queue.rs", "let quote = '\"'; unsafe { f() } // \""),
    ];
    for (name, code) in bad {
        assert!(!violations(name, code).is_empty(), "not found in {name}: {code}");
    }
}

#[test]
fn the_search_leaves_the_rest_alone() {
    let good = [
        (
            "aq/mod.rs",
            "//! pyo3, libc and unsafe are elsewhere.\n/* crate::conq */ pub mod layout;",
        ),
        (
            "aq/mod.rs",
            "const TEXT: &str = \"unsafe \\\" libc::open\"; const RAW: &str = r#\"pyo3 \" rustix\"#;",
        ),
        (
            "aq/mod.rs",
            "use crate::{Error, shared::{region::Region, sync::AtomicU32}}; let ring = aq::ring();",
        ),
        (
            "aq/mod.rs",
            "use super::layout; use crate::aq::control::Word; fn f<'a>(x: &'a u32) -> char { 'u' }",
        ),
        (
            "aq/mod.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests { use std::sync::atomic::AtomicU32; }",
        ),
        (
            "os/futex.rs",
            "use std::sync::atomic::AtomicU32; unsafe { libc::syscall() }",
        ),
        ("shared/sync.rs", "pub use loom::sync::atomic::AtomicU32;"),
        ("shared/region.rs", "unsafe { pointer.read() }"),
        (
            "python/buffer.rs",
            "use pyo3::ffi; use std::sync::atomic::AtomicUsize; unsafe {}",
        ),
        (
            "python/aq.rs",
            "use pyo3::prelude::*; use crate::aq::Queue; use crate::ring;",
        ),
        ("aq/layout.rs", "pub const HEAD: usize = MAGIC + 8; // one AtomicU32"),
    ];
    for (name, code) in good {
        assert_eq!(violations(name, code), Vec::<String>::new(), "{code}");
    }
}
