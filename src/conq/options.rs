//! What people choose when they make a queue; pure.

/// How a queue is made: the numbers that people choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most messages at a time, in all three phases together.
    pub max_messages: u32,
    /// The most bytes of one message.
    pub max_message_size: u32,
    /// The most memory for messages with their heads, in bytes.
    pub max_bytes: u64,
    /// The most processes at a time.
    pub participants: u32,
    /// After so many deliveries without a dequeue, and into which queue, a message is put aside.
    pub dead_letter: Option<DeadLetter>,
}

/// Where messages go that nobody can finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The number of deliveries that a message gets, at least 1.
    pub max_deliveries: u32,
    /// The name of a queue of the same manager.
    pub queue: String,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_messages: 1_000_000,
            max_message_size: 64 << 10,
            max_bytes: 1 << 30,
            participants: 1024,
            dead_letter: None,
        }
    }
}
