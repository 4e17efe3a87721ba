//! What became of each mutation.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::mutation::Mutation;

/// The fate of one mutation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Never judged: a bug of the driver.
    Unjudged = 0,
    Error = 1,
    Harmless = 2,
    /// Not reported and not harmless.
    Wrong = 3,
    Panic = 4,
    /// A signal: SIGBUS, SIGSEGV, abort.
    Crash = 5,
    /// More than five seconds.
    Hang = 6,
}

impl Class {
    pub(super) fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Error,
            2 => Self::Harmless,
            3 => Self::Wrong,
            4 => Self::Panic,
            5 => Self::Crash,
            6 => Self::Hang,
            _ => Self::Unjudged,
        }
    }

    fn is_failure(self) -> bool {
        !matches!(self, Self::Error | Self::Harmless)
    }
}

/// Counts by class, and every failing mutation.
#[derive(Default, Debug)]
pub struct Report {
    pub counts: BTreeMap<Class, usize>,
    pub failures: Vec<(Class, Mutation)>,
    /// Beside failures: signals, panic messages, stacks, verdicts.
    pub details: Vec<(Class, Mutation, String)>,
    pub elapsed: Duration,
}

impl Report {
    pub(super) fn count(&mut self, class: Class, mutation: &Mutation) {
        *self.counts.entry(class).or_default() += 1;
        if class.is_failure() {
            self.failures.push((class, mutation.clone()));
        }
    }

    pub(super) fn detail(&mut self, class: Class, mutation: &Mutation, text: &str) {
        self.details.push((class, mutation.clone(), text.to_owned()));
    }

    pub fn of(&self, class: Class) -> usize {
        self.counts.get(&class).copied().unwrap_or(0)
    }

    pub fn total(&self) -> usize {
        self.counts.values().sum()
    }

    /// Fails on anything but errors and harmless changes; prints the figures when all is well.
    #[track_caller]
    pub fn assert_clean(&self, context: &str) {
        assert!(self.failures.is_empty(), "{context}: {self}");
        super::announce(&format!("corrupt {context}: {self}"));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = self.total() as f64 / self.elapsed.as_secs_f64().max(1e-9);
        write!(f, "{} mutations, {rate:.0}/s, {:?}", self.total(), self.counts)?;
        for (class, mutation) in self.failures.iter().take(10) {
            write!(f, "\n  {class:?}: {mutation}")?;
            if let Some((.., text)) = self.details.iter().find(|(c, m, _)| c == class && m == mutation) {
                write!(f, "\n    {}", text.replace('\n', "\n    "))?;
            }
        }
        if self.failures.len() > 10 {
            write!(f, "\n  and {} more", self.failures.len() - 10)?;
        }
        Ok(())
    }
}
