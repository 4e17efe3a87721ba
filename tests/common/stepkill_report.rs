//! What a step-kill run found, with the source line of each fatal instruction.

use std::collections::HashSet;
use std::fmt;
use std::process::Command;
use std::time::Duration;

/// An image that did not recover.
#[derive(Clone, Debug)]
pub struct Failure {
    pub completed: usize,
    pub running: bool,
    pub step: u64,
    /// Of the instruction that made the image.
    pub address: u64,
    pub change: String,
    pub text: String,
}

/// The figures and the failures of one run.
#[derive(Default, Debug)]
pub struct Report {
    pub instructions: u64,
    pub distinct_images: usize,
    /// What made each distinct image, in order.
    pub changes: Vec<String>,
    /// Calls of the recovery: distinct images, returns and cut writes.
    pub recovered: usize,
    pub cut_images: usize,
    /// Iterations of `rep` instructions that were not looked at one by one.
    pub iterations_passed_over: u64,
    pub steps_per_second: f64,
    pub images_per_second: f64,
    pub failures: Vec<Failure>,
    fingerprints: HashSet<u64>,
}

impl Report {
    pub(super) fn note(&mut self, fingerprint: u64, change: &str) {
        if self.fingerprints.insert(fingerprint) {
            self.distinct_images += 1;
            self.changes.push(change.to_owned());
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(super) fn finish(&mut self, total: Duration, recovering: Duration) {
        self.steps_per_second = self.instructions as f64 / total.saturating_sub(recovering).as_secs_f64().max(1e-9);
        self.images_per_second = self.recovered as f64 / recovering.as_secs_f64().max(1e-9);
    }

    /// Fails the test with the first failures and where in the source they are; prints the figures when all is well.
    #[track_caller]
    pub fn assert_ok(&self, context: &str) {
        assert!(self.failures.is_empty(), "{context}: {self}");
        super::announce(&format!("step-kill {context}: {self}"));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} instructions, {} distinct images, {} recovered ({} cut writes), {:.0} steps/s, {:.0} images/s",
            self.instructions,
            self.distinct_images,
            self.recovered,
            self.cut_images,
            self.steps_per_second,
            self.images_per_second
        )?;
        if !self.failures.is_empty() {
            write!(f, "; {} FAILED", self.failures.len())?;
        }
        for failure in self.failures.iter().take(3) {
            let inside = if failure.running {
                format!(", inside operation {}", failure.completed)
            } else {
                String::new()
            };
            write!(
                f,
                "\n  step {}: {} operations returned{inside}\n    image made by: {}\n    at: {}\n    {}",
                failure.step,
                failure.completed,
                failure.change,
                source_line(failure.address).replace('\n', "\n        "),
                failure.text
            )?;
        }
        Ok(())
    }
}

/// Function and line, by addr2line where there is one. The tracee is a fork, so its addresses are ours.
fn source_line(address: u64) -> String {
    let plain = format!("address {address:#x}");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let parsed: Vec<(u64, u64, &str)> = maps
        .lines()
        .filter_map(|line| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            let path = line.split_whitespace().nth(5)?;
            Some((
                u64::from_str_radix(start, 16).ok()?,
                u64::from_str_radix(end, 16).ok()?,
                path,
            ))
        })
        .collect();
    let Some((_, _, path)) = parsed.iter().find(|(start, end, _)| (*start..*end).contains(&address)) else {
        return plain;
    };
    let Some((base, ..)) = parsed.iter().find(|(_, _, other)| other == path) else {
        return plain;
    };
    let offset = format!("{:#x}", address - base);
    match Command::new("addr2line")
        .args(["-e", path, "-f", "-C", "-i", "-p", &offset])
        .output()
    {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => format!("{plain} ({path} + {offset})"),
    }
}
