//! Which words a queue uses: the model of memory has an atomic for each and no others.

use super::layout::{Geometry, header, slot};

impl Geometry {
    /// The offsets of the 64-bit and of the 32-bit words that a queue with `slots` small messages uses, for the model of memory.
    pub fn words(&self, slots: u32) -> (Vec<usize>, Vec<usize>) {
        let mut wide = header::WIDE.to_vec();
        let mut narrow = header::NARROW.to_vec();
        wide.extend((0..self.participants as usize).map(|entry| header::LENGTH + 8 + 8 * entry));
        narrow.push(header::LENGTH);
        narrow.extend((0..self.segments).map(|segment| self.table_word(segment)));
        wide.extend((0..self.classes() * self.open_words()).map(|word| self.open_word(0, word)));
        wide.extend((0..self.places).map(|ticket| self.place(ticket)));
        for node in 0..self.max_messages {
            wide.push(self.node(node));
            narrow.push(self.node(node) + 8);
        }
        wide.extend([self.full_groups(0), self.taken(0, 0)]);
        for index in 0..slots {
            let slot = self.slot_at(0, 0, index);
            wide.extend([slot::ID, slot::ENQUEUED, slot::DEADLINE].map(|field| self.field(slot, field)));
            narrow.extend([slot::LENGTH, slot::LINK].map(|field| self.field(slot, field)));
            narrow.extend(
                (slot::BYTES..self.unit as usize)
                    .step_by(4)
                    .map(|at| self.field(slot, at)),
            );
            narrow.push(self.state(slot));
        }
        (wide, narrow)
    }
}
