//! What becomes of the answers to a read?

use std::sync::Arc;

use millrace_api::block::CHUNK_BYTES;
use millrace_api::wire::{ErrorCode, ErrorFrame, WHOLE_REQUEST};

use super::{Asked, Part, Reading, of_worker};
use crate::client::connection::Event;
use crate::client::receive::DataFrame;
use crate::client::{Chunk, ReadError};

impl Reading {
    pub(super) fn note(&mut self, event: Event) {
        let request = match &event {
            Event::Data(frame) => frame.request,
            Event::Index { request, .. }
            | Event::Settings { request, .. }
            | Event::Error { request, .. }
            | Event::Lost { request, .. } => *request,
        };
        let Some(index) = self.asked.iter().position(|asked| asked.id == request) else { return };
        match event {
            Event::Data(frame) => self.note_data(index, frame),
            Event::Error { error, .. } => self.note_error(index, error),
            Event::Lost { trouble, .. } => {
                let asked = self.asked.swap_remove(index);
                self.give_up(&asked, &trouble);
            }
            // Nothing here asks for these.
            Event::Index { .. } | Event::Settings { .. } => {}
        }
    }

    fn note_data(&mut self, index: usize, frame: DataFrame) {
        let DataFrame { head, is_last, crcs, bad, payload, .. } = frame;
        let asked = &mut self.asked[index];
        if let Some(part) = asked.parts.get_mut(head.item as usize) {
            let progress = &mut self.wants[part.want];
            let (mut good, mut wrong) = (0, 0);
            for number in 0..u32::from(head.count) {
                let chunk = head.first_chunk + number;
                let start = number as usize * CHUNK_BYTES as usize;
                let end = (start + CHUNK_BYTES as usize).min(payload.len());
                let is_whole =
                    progress.want.span.place(chunk).is_some_and(|place| place.len as usize == end - start);
                if bad & (1 << number) != 0 || !is_whole {
                    wrong += 1;
                } else if progress.take(chunk) {
                    good += (end - start) as u64;
                    let bytes = payload.slice(start..end);
                    let chunk = Chunk { index: chunk, bytes, crc: crcs[number as usize] };
                    self.ready.push_back((part.want, Ok(chunk)));
                    self.client.counters.chunks.add(1);
                }
            }
            self.client.counters.bytes.add(good);
            if wrong > 0 {
                self.client.counters.bad_chunks.add(wrong);
                tracing::warn!(
                    worker = &*asked.worker,
                    file = progress.want.file,
                    wrong,
                    "bad chunks were received"
                );
                let (version, file, worker) = (self.version, progress.want.file, asked.worker.to_string());
                progress.note_bad(&asked.worker, ReadError::BadChunk { version, file, worker });
            }
            part.expected = part.expected.saturating_sub(head.count.into());
            if progress.left() == 0 && !progress.is_done {
                (progress.is_done, part.expected) = (true, 0);
                self.left -= 1;
            } else if part.expected == 0 && !progress.is_done {
                self.client.counters.asked_again.add(progress.left().into());
                self.unassigned.push(part.want);
            }
        }
        self.end_if_over(index, is_last);
    }

    fn note_error(&mut self, index: usize, error: ErrorFrame) {
        let ErrorFrame { item, code, message, is_last, .. } = error;
        let asked = &mut self.asked[index];
        let worker = Arc::clone(&asked.worker);
        let is_meant = |number: usize| item == WHOLE_REQUEST || item as usize == number;
        let parts = asked.parts.iter_mut().enumerate().filter(|(number, _)| is_meant(*number));
        let end = |part: &mut Part| (std::mem::take(&mut part.expected) > 0).then_some(part.want);
        let meant: Vec<usize> = parts.filter_map(|(_, part)| end(part)).collect();
        for want in meant {
            let progress = &mut self.wants[want];
            let (version, file, message) = (self.version, progress.want.file, message.clone());
            if code == ErrorCode::DeadlinePassed {
                let trouble = of_worker(&worker, &message);
                self.fail(want, ReadError::DeadlinePassed { version, file, trouble });
                continue;
            }
            let refused = ReadError::Refused { version, file, worker: worker.to_string(), code, message };
            if !code.is_retryable_elsewhere() {
                self.fail(want, refused);
                continue;
            }
            if code.is_passing() {
                progress.note_passing(&worker, refused.to_string());
            } else {
                progress.note_refusal(&worker, refused);
            }
            self.client.counters.asked_again.add(progress.left().into());
            self.unassigned.push(want);
        }
        self.end_if_over(index, is_last || item == WHOLE_REQUEST);
    }

    /// Ends a request that has had all its answers.
    fn end_if_over(&mut self, index: usize, is_last: bool) {
        let is_over = self.asked[index].parts.iter().all(|part| part.expected == 0);
        if !is_over && !is_last {
            return;
        }
        let asked = self.asked.swap_remove(index);
        if asked.connection.end(asked.id) {
            self.client.note_change();
        }
        if !is_over {
            self.give_up(&asked, "it ended its answer early");
        }
    }

    /// Takes what a request has not brought back to the unassigned.
    pub(super) fn give_up(&mut self, asked: &Asked, trouble: &str) {
        for part in asked.parts.iter().filter(|part| part.expected > 0) {
            let progress = &mut self.wants[part.want];
            progress.note_passing(&asked.worker, of_worker(&asked.worker, trouble));
            self.client.counters.asked_again.add(progress.left().into());
            self.unassigned.push(part.want);
        }
    }
}
