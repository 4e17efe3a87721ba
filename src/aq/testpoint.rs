//! Moments between two steps of an algorithm at which a test can let somebody else go first. Nothing outside of unit tests.

/// A moment at which others may come in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// A claim has found its room and is about to swap the head.
    BeforeHead,
    /// A claim has moved the head and is about to write the control words.
    BeforeControl,
    /// A run of messages is written and about to be committed.
    BeforeCommit,
    /// The reader's walk has come to a place that is not committed and goes on to the next.
    PastUncommitted,
    /// A release found that the word had changed, and tries again.
    ReleaseAgain,
    /// A snapshot has read the head and is about to copy.
    SnapshotBegins,
}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn reach(_point: Point) {}

#[cfg(test)]
pub(super) use hooks::{at, reach};

#[cfg(test)]
mod hooks {
    use super::Point;
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;

    type Hook = Box<dyn FnOnce()>;

    thread_local! {
        static HOOKS: RefCell<VecDeque<(Point, Hook)>> = RefCell::default();
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets `hook` run when this thread next reaches `point`; several run at one visit each, in this order.
    pub(in super::super) fn at(point: Point, hook: impl FnOnce() + 'static) {
        HOOKS.with_borrow_mut(|hooks| hooks.push_back((point, Box::new(hook))));
    }

    /// Runs what was left for this moment, unless it is itself what comes in between.
    pub(in super::super) fn reach(point: Point) {
        if INSIDE.get() {
            return;
        }
        let next = HOOKS.with_borrow_mut(|hooks| {
            let index = hooks.iter().position(|(wanted, _)| *wanted == point)?;
            hooks.remove(index)
        });
        if let Some((_, hook)) = next {
            INSIDE.set(true);
            hook();
            INSIDE.set(false);
        }
    }
}
