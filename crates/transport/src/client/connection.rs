//! How do many requests share one connection to a worker?
//!
//! Whoever asks writes the request into the socket itself; one task receives, hands each frame to the request it belongs
//! to, and watches for silence. A worker that owes an answer sends something at least every 500 ms, so *any* byte on the
//! connection is a sign of life for all its requests.

use std::collections::HashMap;
use std::io;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use millrace_api::mount::{Announce, MountSettings};
use millrace_api::wire::{Answer, DecodeFrame, ErrorFrame, IndexPartHead, Request};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::receive::{DataFrame, Received, Receiver};
use super::{Inner, Timing};
use crate::Priority;

/// Requests in flight on one connection: fewer than a server takes at once
/// ([`Limits::requests_per_connection`](crate::server::Limits)), so that a cancel is always read.
const MAX_OPEN: usize = 192;

/// Of these, how many may be read-ahead, so that a reader who waits always finds room.
const MAX_OPEN_PREFETCH: usize = 160;

/// How often an active connection is looked at for silence.
const WATCH: Duration = Duration::from_millis(250);

/// What happens to a request.
#[derive(Debug)]
pub(super) enum Event {
    Data(DataFrame),
    Index {
        request: u64,
        head: IndexPartHead,
        payload: Bytes,
    },
    Settings {
        request: u64,
        settings: MountSettings,
    },
    Error {
        request: u64,
        error: ErrorFrame,
    },
    /// No answer will come on this connection.
    Lost {
        request: u64,
        trouble: String,
    },
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Converse {
    #[error("receive")]
    Receive(#[source] io::Error),
    #[error("send")]
    Send(#[source] io::Error),
    #[error("understand a frame")]
    Decode(#[source] DecodeFrame),
    #[error("it sends more than was asked for")]
    TooMuch,
    #[error("it was silent for {0:?}")]
    Silent(Duration),
    #[error("it left the membership")]
    Retired,
}

/// One connection, past its hello.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    started: Instant,
    outbox: Mutex<Vec<u8>>,
    wake: Notify,
    table: Mutex<Table>,
    open: AtomicUsize,
    /// When the last byte came, or the first request after none was open; milliseconds since `started`.
    heard_ms: AtomicU64,
    is_watched: AtomicBool,
    is_silent: AtomicBool,
    /// Newest epoch whose membership was asked for here.
    asked_epoch: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    routes: HashMap<u64, mpsc::Sender<Event>>,
    is_closed: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            started: Instant::now(),
            outbox: Mutex::default(),
            wake: Notify::new(),
            table: Mutex::default(),
            open: AtomicUsize::new(0),
            heard_ms: AtomicU64::new(0),
            is_watched: AtomicBool::new(true),
            is_silent: AtomicBool::new(false),
            asked_epoch: AtomicU64::new(0),
        }
    }

    /// Requests in flight.
    pub(super) fn load(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Whether another request may be put on it.
    pub(super) fn has_room(&self, priority: Priority) -> bool {
        match priority {
            Priority::Foreground => self.load() < MAX_OPEN,
            Priority::Prefetch => self.load() < MAX_OPEN_PREFETCH,
        }
    }

    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Takes it that nobody is there, until a byte comes; a ping asks for one.
    pub(super) fn set_silent(&self) {
        if !self.is_silent.swap(true, Ordering::Relaxed) {
            self.write(|out| Request::Ping.encode(0, out));
        }
    }

    /// Sends a request whose events go to `events`; `false` when the connection is closed.
    pub(super) fn ask(&self, id: u64, request: &Request, events: &mpsc::Sender<Event>) -> bool {
        {
            let mut table = self.table.lock();
            if table.is_closed {
                return false;
            }
            if table.routes.is_empty() {
                self.heard_ms.store(self.now_ms(), Ordering::Relaxed);
            }
            table.routes.insert(id, events.clone());
            self.open.store(table.routes.len(), Ordering::SeqCst);
        }
        self.write(|out| request.encode(id, out));
        if !self.is_watched.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
        true
    }

    /// Ends a request that has had all its answers. Answers whether there was no room before (for one priority at least).
    pub(super) fn end(&self, id: u64) -> bool {
        let mut table = self.table.lock();
        let was_full = matches!(table.routes.len(), MAX_OPEN.. | MAX_OPEN_PREFETCH);
        let was_open = table.routes.remove(&id).is_some();
        self.open.store(table.routes.len(), Ordering::SeqCst);
        was_full && was_open
    }

    /// Ends a request whose answers are no longer wanted, and says so. Answers whether there was no room before.
    pub(super) fn cancel(&self, id: u64) -> bool {
        let was_full = self.end(id);
        self.write(|out| Request::Cancel.encode(id, out));
        was_full
    }

    /// Tells the worker what is mounted. It answers with a sign of life; one of an older build with an error that nobody
    /// awaits.
    pub(super) fn announce(&self, announce: &Announce) {
        self.write(|out| Request::Announce(announce.clone()).encode(0, out));
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Sends a frame at once where the socket takes it; the rest goes when the connection's task can write.
    fn write(&self, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut outbox = self.outbox.lock();
        let was_empty = outbox.is_empty();
        encode(&mut outbox);
        if was_empty {
            // An error shows again where the connection's task reads.
            let sent = self.stream.try_write(&outbox).unwrap_or(0);
            outbox.drain(..sent);
        }
        if !outbox.is_empty() {
            drop(outbox);
            self.wake.notify_one();
        }
    }

    /// Receives until the connection ends, then tells all who wait.
    pub(super) async fn run(&self, client: &Weak<Inner>, receiver: Receiver, timing: &Timing) -> Converse {
        let ended = self.converse(client, receiver, timing).await;
        self.close(&super::trouble(&ended));
        ended
    }

    async fn converse(&self, client: &Weak<Inner>, mut receiver: Receiver, timing: &Timing) -> Converse {
        let mut watch = std::pin::pin!(sleep_until(Instant::now() + WATCH));
        loop {
            let has_unsent = !self.outbox.lock().is_empty();
            tokio::select! {
                // What came counts before the clock: after a stall of this program itself the worker is not to blame.
                biased;
                readable = self.stream.readable() => {
                    let read = match readable.and_then(|()| receiver.fill(&self.stream)) {
                        Ok(read) => read,
                        Err(error) => return Converse::Receive(error),
                    };
                    if read > 0 {
                        self.heard_ms.store(self.now_ms(), Ordering::Relaxed);
                        if self.is_silent.swap(false, Ordering::Relaxed) {
                            changed(client);
                        }
                        if let Err(ended) = self.take(client, &mut receiver) {
                            return ended;
                        }
                    }
                }
                writable = self.stream.writable(), if has_unsent => {
                    if let Err(error) = writable.and_then(|()| self.flush()) {
                        return Converse::Send(error);
                    }
                }
                () = self.wake.notified() => {
                    if self.is_watched.load(Ordering::Relaxed) {
                        let soon = Instant::now() + WATCH;
                        if watch.deadline() > soon {
                            watch.as_mut().reset(soon);
                        }
                    }
                }
                () = &mut watch => match self.look(client, timing) {
                    Ok(next) => watch.as_mut().reset(next),
                    Err(ended) => return ended,
                },
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        let mut outbox = self.outbox.lock();
        let sent = self.stream.try_io(Interest::WRITABLE, || {
            rustix::net::send(&self.stream, &outbox, rustix::net::SendFlags::NOSIGNAL)
                .map_err(io::Error::from)
        });
        match sent {
            Ok(sent) => {
                outbox.drain(..sent);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Hands over all whole frames.
    fn take(&self, client: &Weak<Inner>, receiver: &mut Receiver) -> Result<(), Converse> {
        while let Some(received) = receiver.next().map_err(Converse::Decode)? {
            match received {
                Received::Data(frame) => {
                    self.note_epoch(client, frame.head.epoch);
                    self.hand_over(frame.request, Event::Data(frame))?;
                }
                Received::Index { request, head, payload } => {
                    self.hand_over(request, Event::Index { request, head, payload })?;
                }
                Received::Plain { request, answer } => match answer {
                    Answer::Error(error) => {
                        self.note_epoch(client, error.epoch);
                        self.hand_over(request, Event::Error { request, error })?;
                    }
                    Answer::Membership(membership) => {
                        if let Some(client) = client.upgrade() {
                            client.learn(membership);
                        }
                    }
                    // That they came has been noted.
                    Answer::Pending { epoch } => {
                        if let Some(client) = client.upgrade() {
                            client.counters.pending.add(1);
                        }
                        self.note_epoch(client, epoch);
                    }
                    Answer::Pong { epoch } => self.note_epoch(client, epoch),
                    Answer::MountSettings(settings) => {
                        self.hand_over(request, Event::Settings { request, settings })?;
                    }
                },
                Received::Unknown => {}
            }
        }
        Ok(())
    }

    fn hand_over(&self, request: u64, event: Event) -> Result<(), Converse> {
        let mut table = self.table.lock();
        let Some(route) = table.routes.get(&request) else {
            // Cancelled, or gone round before it answered.
            return Ok(());
        };
        match route.try_send(event) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => {
                table.routes.remove(&request);
                self.open.store(table.routes.len(), Ordering::SeqCst);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(_)) => Err(Converse::TooMuch),
        }
    }

    /// Asks for a membership that is newer than the client's, once.
    fn note_epoch(&self, client: &Weak<Inner>, epoch: u64) {
        if epoch <= self.asked_epoch.load(Ordering::Relaxed) {
            return;
        }
        self.asked_epoch.store(epoch, Ordering::Relaxed);
        if client.upgrade().is_some_and(|client| client.epoch() < epoch) {
            self.write(|out| Request::GetMembership.encode(0, out));
        }
    }

    /// Looks for silence. Answers when to look again.
    fn look(&self, client: &Weak<Inner>, timing: &Timing) -> Result<Instant, Converse> {
        let now = Instant::now();
        let quiet =
            Duration::from_millis(self.now_ms().saturating_sub(self.heard_ms.load(Ordering::Relaxed)));
        let is_idle = self.load() == 0;
        if self.is_silent() {
            // Taken for silent because of another connection to the worker, with requests of its own in flight.
            if !is_idle && quiet > timing.silence {
                self.lose_all(&format!("it was silent for {quiet:?}"));
            }
            return if quiet > timing.give_up { Err(Converse::Silent(quiet)) } else { Ok(now + WATCH) };
        }
        if !is_idle && quiet > timing.silence {
            self.set_silent();
            self.lose_all(&format!("it was silent for {quiet:?}"));
            if let Some(client) = client.upgrade() {
                client.counters.silent.add(1);
                client.note_silence(self);
            }
            return Ok(now + WATCH);
        }
        if is_idle && quiet > WATCH {
            self.is_watched.store(false, Ordering::SeqCst);
            if quiet < timing.ping {
                // A request that slips in here is seen when it has waited, at the latest with the next ping.
                if self.load() == 0 {
                    return Ok(now + (timing.ping - quiet).max(WATCH));
                }
                self.is_watched.store(true, Ordering::Relaxed);
                return Ok(now + WATCH);
            }
            if quiet > timing.ping + timing.silence {
                self.set_silent();
                changed(client);
            } else {
                self.write(|out| Request::Ping.encode(0, out));
            }
        }
        Ok(now + WATCH)
    }

    /// Tells all requests that no answer will come, and the worker that none is wanted.
    fn lose_all(&self, trouble: &str) {
        let routes = std::mem::take(&mut self.table.lock().routes);
        self.open.store(0, Ordering::Relaxed);
        for (request, route) in routes {
            // A full channel belongs to a reader that has its data; it finds the connection silent by itself.
            let _ = route.try_send(Event::Lost { request, trouble: trouble.to_owned() });
            self.write(|out| Request::Cancel.encode(request, out));
        }
    }

    fn close(&self, trouble: &str) {
        self.table.lock().is_closed = true;
        self.lose_all(trouble);
    }
}

fn changed(client: &Weak<Inner>) {
    if let Some(client) = client.upgrade() {
        client.note_change();
    }
}
