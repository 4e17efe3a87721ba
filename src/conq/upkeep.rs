//! What keeps a queue in order beside its operations: the look at a file before it is used, the remains of dead producers, the
//! taking over from another boot.

use std::collections::HashSet;

use super::audit::audit;
use super::layout::header;
use super::origin::Origin;
use super::queue::Queue;
use super::recover;
use crate::shared::sync::Ordering::Relaxed;
use crate::{Error, Result};

/// At most this often the remains of dead producers are looked for.
const SWEEP_INTERVAL: u64 = 1_000_000_000;

impl Queue {
    /// Compares everything with everything before the queue is used, puts in order what is derived, and clears away what the
    /// dead left.
    pub(super) fn examine(&self, now: u64) -> Result<()> {
        let guard = self.lock()?;
        let findings = audit(&self.space)?;
        if !findings.sound || findings.missing > 0 {
            if !guard.recovered() {
                recover::end_leases(&self.space, now)?;
            }
            self.repair()?;
        }
        if findings.missing > 0 && !guard.recovered() {
            return Err(Error::Corrupt(format!(
                "{} messages are counted but not there; what is left is in order again",
                findings.missing
            )));
        }
        drop(guard);
        self.inherited.fetch_or((findings.unlisted > 0).into(), Relaxed);
        self.sweep(now)
    }

    /// Clears away what producers left that died since the last look, at most once a second.
    #[inline]
    pub(super) fn sweep_if_due(&self, now: u64) -> Result<()> {
        let last = self.space.wide(header::LAST_SWEEP).load(Relaxed);
        if self.private_to.is_some() || now.abs_diff(last) < SWEEP_INTERVAL {
            return Ok(());
        }
        self.sweep(now)
    }

    /// Clears away what dead producers left.
    #[cold]
    fn sweep(&self, now: u64) -> Result<()> {
        self.space.wide(header::LAST_SWEEP).store(now, Relaxed);
        let dead = self.roster.members()?.into_iter().filter(|(_, alive)| !alive);
        let dead: HashSet<u64> = dead.map(|(identity, _)| identity.word()).collect();
        // Whoever held it when this process was forked off never gives it back: then everything is news.
        let swept = self.swept.try_lock().is_ok_and(|swept| dead.is_subset(&swept));
        if self.inherited.swap(0, Relaxed) != 0 || !swept {
            self.locked(now, |_| recover::sweep(&self.space, &self.roster))?;
            if let Ok(mut swept) = self.swept.try_lock() {
                *swept = dead;
            }
            self.arrived().notify_all();
        }
        Ok(())
    }

    /// Takes over a queue of another boot, unless somebody else has done so first.
    pub(super) fn adopt(&self, here: &Origin, now: u64) -> Result<()> {
        let _guard = self.lock()?;
        if !here.same_boot(&Origin::read(&self.space.region)) {
            recover::adopt(&self.space, now)?;
            here.write(&self.space.region);
        }
        Ok(())
    }
}
