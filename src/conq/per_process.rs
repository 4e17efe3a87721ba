//! A value that a forked child has anew: whoever held a lock in it in the parent does not exist in the child, and would never
//! give it back.

use std::sync::OnceLock;

use crate::os::fork;

/// One `T` for each process in a line of forks.
#[derive(Debug, Default)]
pub(super) struct PerProcess<T>(OnceLock<Link<T>>);

#[derive(Debug)]
struct Link<T> {
    generation: u32,
    value: T,
    next: OnceLock<Box<Link<T>>>,
}

impl<T: Default> PerProcess<T> {
    pub(super) const fn new() -> Self {
        PerProcess(OnceLock::new())
    }

    /// That of this process.
    #[inline]
    pub(super) fn get(&self) -> &T {
        let mut link = made(&self.0, Link::new);
        while link.generation != fork::generation() {
            link = made::<Box<_>>(&link.next, || Box::new(Link::new()));
        }
        &link.value
    }
}

/// What is in `place`, made where it is missing, and never left half made to a child that another thread forks.
#[inline]
fn made<V>(place: &OnceLock<V>, make: impl FnOnce() -> V) -> &V {
    match place.get() {
        Some(value) => value,
        None => fork::undivided(|| place.get_or_init(make)),
    }
}

impl<T: Default> Link<T> {
    fn new() -> Self {
        Link {
            generation: fork::generation(),
            value: T::default(),
            next: OnceLock::new(),
        }
    }
}
