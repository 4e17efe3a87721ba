//! The original's own files, byte for byte: a recorded run of 120 rounds of open, work and close is replayed, and after each
//! close every file must be there with the recorded size and SHA-1. In every mode: none of them may change a byte.

use std::collections::BTreeMap;
use std::path::Path;

use tailrace::qewqew::{DurableQueue, Options, SyncMode};

const TRACE: &str = include_str!("golden/qewqew_trace.txt");

fn options(chunk_size: u64, sync: SyncMode) -> Options {
    Options {
        chunk_size,
        sync,
        ..Options::default()
    }
}

/// Replays the trace with a queue opened anew in each round; returns how many messages went through.
fn replay(options: impl Fn(u64) -> Options, ignored: impl Fn(&str) -> bool) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let mut lines = TRACE.lines();
    let chunk_size: u64 = lines.next().unwrap().strip_prefix("T chunk=").unwrap().parse().unwrap();
    let path = dir.path().join("t100.dat");
    let mut enqueued = 0_usize;
    let mut rounds = 0;
    for line in lines.filter(|line| !line.is_empty()) {
        let (work, files) = line.split_once('|').unwrap();
        let mut work = work.split_whitespace();
        let round = work.next().unwrap();
        let queue = DurableQueue::open(&path, options(chunk_size)).unwrap();
        for operation in work {
            let context = format!("{round} {operation}");
            if let Some(length) = operation.strip_prefix('E') {
                let message: Vec<u8> = (0..length.parse().unwrap()).map(|j| (enqueued + 7 * j) as u8).collect();
                queue.enqueue(&message).unwrap();
                enqueued += 1;
            } else if operation == "D-!" {
                assert_eq!(queue.dequeue().unwrap(), None, "{context}");
                assert!(queue.is_empty().unwrap());
            } else {
                let (length, first) = operation[1..].split_once(':').unwrap();
                let peeked = queue.peek().unwrap().expect(&context);
                let message = queue.dequeue().unwrap().expect(&context);
                assert_eq!(message, peeked, "{context}");
                assert_eq!(message.len(), length.parse::<usize>().unwrap(), "{context}");
                assert_eq!(
                    message.first().copied().unwrap_or(0),
                    first.parse::<u8>().unwrap(),
                    "{context}"
                );
            }
        }
        queue.close().unwrap();
        let expected: BTreeMap<String, (u64, String)> = files.split_whitespace().map(parse_file).collect();
        let mut found = files_of(dir.path());
        found.retain(|name, _| !ignored(name));
        assert_eq!(found, expected, "files after {round}");
        rounds += 1;
    }
    assert_eq!(rounds, 120);
    enqueued
}

fn parse_file(text: &str) -> (String, (u64, String)) {
    let (name, rest) = text.split_once('=').unwrap();
    let (size, digest) = rest.split_once(':').unwrap();
    (name.to_owned(), (size.parse().unwrap(), digest.to_owned()))
}

fn files_of(dir: &Path) -> BTreeMap<String, (u64, String)> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let bytes = std::fs::read(entry.path()).unwrap();
            let digest: String = sha1(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let name = entry.file_name().into_string().unwrap();
            (name, (bytes.len() as u64, digest[..12].to_owned()))
        })
        .collect()
}

#[test]
fn the_trace_of_the_original_is_repeated_byte_for_byte() {
    for sync in [SyncMode::Always, SyncMode::Group, SyncMode::Never] {
        let enqueued = replay(|size| options(size, sync), |_| false);
        assert_eq!(enqueued, 181, "{sync:?}");
    }
}

#[test]
fn checksums_and_network_mode_do_not_change_the_documented_files() {
    let with_checksums = |size| Options {
        crc: true,
        ..options(size, SyncMode::Always)
    };
    replay(with_checksums, |name| name.ends_with(".crc"));
    let network = |size| Options {
        network: true,
        ..options(size, SyncMode::Always)
    };
    replay(network, |_| false);
}

/// FIPS 180-1, straight from its text: the trace names files by it, and no dependency is worth twenty lines.
fn sha1(message: &[u8]) -> [u8; 20] {
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - message.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let bits = (message.len() as u64 * 8).to_be_bytes();
    let end = padded.len();
    padded[end - 8..].copy_from_slice(&bits);
    let mut state = [0x6745_2301_u32, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];
    for block in padded.chunks_exact(64) {
        let mut w = [0_u32; 80];
        for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_be_bytes(bytes.try_into().unwrap());
        }
        for t in 16..80 {
            w[t] = (w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16]).rotate_left(1);
        }
        let [mut a, mut b, mut c, mut d, mut e] = state;
        for (t, word) in w.iter().enumerate() {
            let (f, k) = match t / 20 {
                0 => ((b & c) | (!b & d), 0x5A82_7999),
                1 => (b ^ c ^ d, 0x6ED9_EBA1),
                2 => ((b & c) | (b & d) | (c & d), 0x8F1B_BCDC),
                _ => (b ^ c ^ d, 0xCA62_C1D6_u32),
            };
            let next = a
                .rotate_left(5)
                .wrapping_add(f)
                .wrapping_add(e)
                .wrapping_add(k)
                .wrapping_add(*word);
            (e, d, c, b, a) = (d, c, b.rotate_left(30), a, next);
        }
        for (old, new) in state.iter_mut().zip([a, b, c, d, e]) {
            *old = old.wrapping_add(new);
        }
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

#[test]
fn the_digest_is_sha1() {
    assert_eq!(sha1(b"abc")[..4], [0xa9, 0x99, 0x3e, 0x36]);
    assert_eq!(sha1(&[b'a'; 119])[..2], sha1(&[b'a'; 119])[..2]);
    assert_eq!(sha1(b"")[..4], [0xda, 0x39, 0xa3, 0xee]);
}
