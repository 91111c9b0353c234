//! Whom is a read asked of?
//!
//! Retries for reads live here and nowhere else. Wants that no worker has been asked for are *unassigned*; each pass gives
//! them to the first worker in their hash order that is alive and has not failed them in this round, one request a worker.

mod answers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_api::wire::{BatchItem, BatchRead, MAX_READ_CHUNKS, Read, Request, flags};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::connection::{Connection, Event};
use super::link::Pick;
use super::progress::Progress;
use super::{Chunk, Inner, ReadError, Roster, Want};
use crate::Priority;

/// Wait before all workers are asked once more, unless one comes back earlier.
const NEXT_ROUND: Duration = Duration::from_millis(200);

/// Chunks of one object as they come. Dropping it cancels what is open.
#[derive(Debug)]
pub struct ChunkStream(Reading);

/// Chunks of many objects as they come. Dropping it cancels what is open.
#[derive(Debug)]
pub struct BatchStream(Reading);

impl ChunkStream {
    pub(super) fn new(reading: Reading) -> Self {
        Self(reading)
    }

    /// The next chunk; `None` when all have come, or after an error.
    ///
    /// # Cancel safety
    /// Safe: a chunk that came is kept for the next call.
    pub async fn next(&mut self) -> Option<Result<Chunk, ReadError>> {
        self.0.next().await.map(|(_, result)| result)
    }
}

impl BatchStream {
    pub(super) fn new(reading: Reading) -> Self {
        Self(reading)
    }

    /// The next chunk or error and the number of its want; `None` when all wants have ended. An error ends its want only.
    ///
    /// # Cancel safety
    /// Safe: a chunk that came is kept for the next call.
    pub async fn next(&mut self) -> Option<(usize, Result<Chunk, ReadError>)> {
        self.0.next().await
    }
}

/// A read of one or many objects.
#[derive(Debug)]
pub(super) struct Reading {
    client: Arc<Inner>,
    version: VersionId,
    deadline: Instant,
    priority: Priority,
    wants: Vec<Progress>,
    /// Wants that have not ended.
    left: usize,
    unassigned: Vec<usize>,
    /// Wants for which all workers were tried, until the next round.
    resting: Vec<usize>,
    /// When that is; none while there is no need.
    next_round: Option<Instant>,
    asked: Vec<Asked>,
    ready: VecDeque<(usize, Result<Chunk, ReadError>)>,
    /// As many events as requests can have: each chunk in a frame of its own, an error an item, a loss a request.
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
    changes: watch::Receiver<()>,
}

/// A request in flight.
#[derive(Debug)]
struct Asked {
    id: u64,
    worker: Arc<str>,
    connection: Arc<Connection>,
    parts: Vec<Part>,
}

/// One item of a request in flight.
#[derive(Debug)]
struct Part {
    want: usize,
    /// Chunks that have not come yet.
    expected: u32,
}

impl Reading {
    pub(super) fn new(
        client: &Arc<Inner>,
        version: VersionId,
        wants: Vec<Want>,
        deadline: Instant,
        priority: Priority,
    ) -> Self {
        client.counters.reads.add(1);
        let wants: Vec<Progress> = wants.into_iter().map(Progress::new).collect();
        let unassigned: Vec<usize> = (0..wants.len()).filter(|want| !wants[*want].is_done).collect();
        let chunks: usize = wants.iter().map(|want| want.left() as usize).sum();
        let mut reading = Self {
            client: Arc::clone(client),
            version,
            deadline,
            priority,
            left: unassigned.len(),
            events: mpsc::channel(chunks + 2 * wants.len() + 1),
            wants,
            unassigned,
            resting: Vec::new(),
            next_round: None,
            asked: Vec::new(),
            ready: VecDeque::new(),
            changes: client.changes.subscribe(),
        };
        reading.assign();
        reading
    }

    async fn next(&mut self) -> Option<(usize, Result<Chunk, ReadError>)> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            if self.left == 0 {
                return None;
            }
            let wake = self.next_round.map_or(self.deadline, |next| next.min(self.deadline));
            tokio::select! {
                biased;
                Some(event) = self.events.1.recv() => self.note(event),
                Ok(()) = self.changes.changed(), if !self.unassigned.is_empty() || !self.resting.is_empty() => {
                    self.unassigned.append(&mut self.resting);
                }
                () = sleep_until(wake) => {
                    self.unassigned.append(&mut self.resting);
                    self.next_round = None;
                }
            }
            if self.ready.is_empty() && Instant::now() >= self.deadline {
                self.end_late();
            } else {
                self.assign();
            }
        }
    }

    /// Gives unassigned wants to workers.
    fn assign(&mut self) {
        if self.unassigned.is_empty() {
            return;
        }
        let roster = self.client.roster();
        let mut groups: Vec<(Asked, bool)> = Vec::new();
        for want in std::mem::take(&mut self.unassigned) {
            match self.choose(want, &roster) {
                Choice::Ask { worker, connection, checks } => {
                    let chunks = self.wants[want].missing();
                    let part = Part { want, expected: chunks.end - chunks.start };
                    let fits = |(asked, as_check): &&mut (Asked, bool)| {
                        *as_check == checks
                            && Arc::ptr_eq(&asked.connection, &connection)
                            && asked.expected() + part.expected <= MAX_READ_CHUNKS
                    };
                    match groups.iter_mut().find(fits) {
                        Some((asked, _)) => asked.parts.push(part),
                        None => {
                            let id = self.client.next_request();
                            groups.push((Asked { id, worker, connection, parts: vec![part] }, checks));
                        }
                    }
                }
                Choice::Wait => self.unassigned.push(want),
                Choice::NextRound => {
                    self.next_round.get_or_insert(Instant::now() + NEXT_ROUND);
                    self.resting.push(want);
                }
                Choice::End(error) => self.fail(want, error),
            }
        }
        for (asked, checks) in groups {
            self.ask(asked, checks, roster.membership.epoch);
        }
    }

    fn ask(&mut self, asked: Asked, checks: bool, epoch: u64) {
        let item = |part: &Part| {
            let want = &self.wants[part.want];
            let (file, content) = (want.want.file, want.want.span.file.content);
            BatchItem { file, content, chunks: want.missing() }
        };
        let left = self.deadline.saturating_duration_since(Instant::now()).as_millis();
        let deadline_ms = u32::try_from(left).unwrap_or(u32::MAX).max(1);
        let mut bits = if checks { flags::VERIFY } else { 0 };
        if self.priority == Priority::Prefetch {
            bits |= flags::PREFETCH;
        }
        let version = self.version;
        let request = match &asked.parts[..] {
            [part] => Request::Read(Read { version, item: item(part), epoch, deadline_ms, flags: bits }),
            parts => {
                let items = parts.iter().map(item).collect();
                Request::BatchRead(BatchRead { version, items, epoch, deadline_ms, flags: bits })
            }
        };
        self.client.counters.requests.add(1);
        if asked.connection.ask(asked.id, &request, &self.events.0) {
            self.asked.push(asked);
        } else {
            // Closed a moment ago: its link knows by now.
            self.give_up(&asked, "the connection was just closed");
            self.next_round = Some(Instant::now());
        }
    }

    fn choose(&mut self, want: usize, roster: &Roster) -> Choice {
        let progress = &mut self.wants[want];
        if let Some(worker) = progress.check_at().cloned() {
            let link = roster.links.iter().find(|link| link.name == worker);
            match link.map(|link| link.pick(&self.client, self.priority)) {
                Some(Pick::Ask(connection)) => return Choice::Ask { worker, connection, checks: true },
                Some(Pick::Wait) => return Choice::Wait,
                Some(Pick::Down(trouble)) => progress.note_passing(&worker, of_worker(&worker, &trouble)),
                None => progress.note_passing(&worker, of_worker(&worker, "it left the membership")),
            }
        }
        let placement = progress.want.placement;
        let mut consider = |index: usize| {
            let link = &roster.links[index];
            if progress.was_tried(&link.name) {
                return None;
            }
            match link.pick(&self.client, self.priority) {
                Pick::Ask(connection) => {
                    Some(Choice::Ask { worker: Arc::clone(&link.name), connection, checks: false })
                }
                Pick::Wait => Some(Choice::Wait),
                Pick::Down(trouble) => {
                    progress.note_passing(&link.name, of_worker(&link.name, &trouble));
                    None
                }
            }
        };
        let owner = roster.membership.owner(placement);
        if let Some(choice) = owner.and_then(&mut consider) {
            return choice;
        }
        if let Some(choice) = roster.membership.order(placement).into_iter().find_map(consider) {
            return choice;
        }
        if roster.links.is_empty() {
            progress.trouble = Some("the membership has no worker".to_owned());
        }
        progress.end_round().map_or(Choice::NextRound, Choice::End)
    }

    fn fail(&mut self, want: usize, error: ReadError) {
        self.wants[want].is_done = true;
        self.left -= 1;
        self.client.counters.failed.add(1);
        self.ready.push_back((want, Err(error)));
    }

    fn end_late(&mut self) {
        self.unassigned.clear();
        self.resting.clear();
        self.cancel();
        for want in 0..self.wants.len() {
            let progress = &mut self.wants[want];
            if !progress.is_done {
                let trouble =
                    progress.trouble.take().unwrap_or_else(|| "the worker waits for the origin".to_owned());
                let (version, file) = (self.version, progress.want.file);
                self.fail(want, ReadError::DeadlinePassed { version, file, trouble });
            }
        }
    }

    fn cancel(&mut self) {
        for asked in self.asked.drain(..) {
            self.client.counters.cancelled.add(1);
            if asked.connection.cancel(asked.id) {
                self.client.note_change();
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Asked {
    fn expected(&self) -> u32 {
        self.parts.iter().map(|part| part.expected).sum()
    }
}

/// What to do with an unassigned want.
#[derive(Debug)]
enum Choice {
    Ask { worker: Arc<str>, connection: Arc<Connection>, checks: bool },
    Wait,
    NextRound,
    End(ReadError),
}

fn of_worker(worker: &str, trouble: &str) -> String {
    format!("worker {worker:?}: {trouble}")
}
