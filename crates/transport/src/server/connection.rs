//! How is one connection served, from its first request on?
//!
//! One task reads requests, polls each read once on the spot, so that a hit goes straight into the queue of what is sent,
//! and sends. Sending in a task of its own was tried: with more than one runtime thread the two wake each other across
//! processors, a fifth of the time of a 1 MiB read. A read that must wait becomes a task; all end with the connection.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use millrace_api::wire::{self, DecodeFrame, ErrorCode, ErrorFrame, FrameHeader, Request, WHOLE_REQUEST};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Duration, Instant, sleep_until, timeout_at};
use tracing::{debug, error};

use super::answering::{Ask, Context, answer_index, answer_items, deadline};
use super::incoming::Incoming;
use super::sessions::Place;
use super::sink::{Line, Ticket};
use super::waiting::Waiting;
use super::writer::write_frames;
use super::{Blocks, ReadError, Shared};
use crate::Priority;

/// How often a stopping connection looks whether it is done.
const STOP_TICK: Duration = Duration::from_millis(20);

/// How long a stopped connection waits for the client to close, so that its last answers are not lost to a reset.
const LINGER: Duration = Duration::from_millis(500);

/// Why a connection ended, where it was not the client closing it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeConnection {
    #[error("receive")]
    Receive(#[source] io::Error),
    #[error("send")]
    Send(#[source] io::Error),
    #[error("understand a frame")]
    Decode(#[source] DecodeFrame),
    #[error("request {request} is opened twice")]
    OpenTwice { request: u64 },
    #[error("a read panicked: {reason}")]
    Panicked { reason: String },
    #[error("nothing came for {0:?}")]
    Idle(Duration),
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Open {
    ticket: Arc<Ticket>,
    task: AbortHandle,
}

struct Connection<B: Blocks> {
    shared: Arc<Shared<B>>,
    line: Arc<Line>,
    peer: Arc<str>,
    open: HashMap<u64, Open>,
    /// Taken off the socket while `open` is full.
    waiting: Waiting,
    /// Each answers with its request.
    tasks: JoinSet<u64>,
    /// Where it is noted what the client mounts.
    place: Place,
    /// Epoch of the newest membership that the client has, or was sent.
    told_epoch: u64,
    is_stopping: bool,
}

/// Serves a connection whose hello is over; ends when the client closes it, at a fault, or after a stop.
pub(super) async fn serve_connection<B: Blocks>(
    shared: Arc<Shared<B>>,
    stream: TcpStream,
    peer: Arc<str>,
    client_epoch: u64,
) -> Result<(), ServeConnection> {
    let line = Arc::new(shared.line());
    let tasks = JoinSet::new();
    let (told_epoch, place) = (client_epoch, shared.sessions.place());
    let (open, waiting, is_stopping) = (HashMap::new(), Waiting::default(), false);
    let mut connection =
        Connection { shared, line, peer, open, waiting, tasks, place, told_epoch, is_stopping };
    let result = connection.run(&stream).await;
    connection.line.outgoing.close();
    connection.line.counters.in_flight.sub(connection.open.len() as u64);
    connection.tasks.shutdown().await;
    result
}

impl<B: Blocks> Connection<B> {
    async fn run(&mut self, stream: &TcpStream) -> Result<(), ServeConnection> {
        let limits = self.shared.limits.clone();
        let mut incoming = Incoming::new();
        let mut heard = Instant::now();
        let mut tick = heard + limits.pending;
        let mut stop_by = heard;
        self.tell_membership();
        let (line, shared) = (Arc::clone(&self.line), Arc::clone(&self.shared));
        let epoch = || shared.service.membership().epoch;
        let mut writer = pin!(write_frames(stream, &line.outgoing, epoch, limits.stall, &line.counters));
        loop {
            self.take_frames(&mut incoming).await?;
            let may_listen = self.may_listen();
            let wake = match (self.is_stopping, self.open.is_empty() && may_listen) {
                (true, _) => Instant::now() + STOP_TICK,
                (false, true) => heard + limits.idle,
                (false, false) => tick,
            };
            tokio::select! {
                readable = stream.readable(), if may_listen => {
                    readable.map_err(ServeConnection::Receive)?;
                    if !incoming.fill(stream).map_err(ServeConnection::Receive)? {
                        return Ok(());
                    }
                    heard = Instant::now();
                }
                error = &mut writer => return Err(ServeConnection::Send(error)),
                Some(ended) = self.tasks.join_next() => self.end_task(ended)?,
                () = self.shared.shutdown.cancelled(), if !self.is_stopping => {
                    self.is_stopping = true;
                    stop_by = Instant::now() + limits.grace;
                }
                () = sleep_until(wake) => {}
            }
            let now = Instant::now();
            if now >= tick {
                tick = now + limits.pending;
                self.tell_pending(limits.pending);
            }
            if self.is_stopping {
                let is_done = self.open.is_empty() && self.line.outgoing.is_drained();
                if is_done || now >= stop_by {
                    linger(stream).await;
                    return Ok(());
                }
            } else if self.open.is_empty() && now >= heard + limits.idle {
                return Err(ServeConnection::Idle(limits.idle));
            }
        }
    }

    /// Whether one more request may begin.
    fn has_room(&self) -> bool {
        self.open.len() < self.shared.limits.requests_per_connection && !self.line.outgoing.is_choked()
    }

    /// Whether one more frame may be taken off the socket, whatever it is.
    fn may_listen(&self) -> bool {
        !self.waiting.is_full() && !self.line.outgoing.is_choked()
    }

    async fn take_frames(&mut self, incoming: &mut Incoming) -> Result<(), ServeConnection> {
        loop {
            while self.has_room()
                && let Some((id, request)) = self.waiting.pop()
            {
                self.start(id, request).await?;
            }
            if !self.may_listen() {
                break;
            }
            match incoming.next() {
                Ok(None) => break,
                Ok(Some((header, body))) => match Request::decode(&header, body) {
                    Ok(request) if Waiting::concerns(&request) && !self.has_room() => {
                        self.waiting.push(header.request, header.body_len, request);
                    }
                    Ok(request) => self.start(header.request, request).await?,
                    Err(error @ DecodeFrame::BadCrc { .. }) => {
                        self.line.counters.bad_frames.add(1);
                        return Err(ServeConnection::Decode(error));
                    }
                    Err(error) => self.refuse_frame(&header, error),
                },
                Err(error) => {
                    // Where the next frame starts is not known: nothing more can be understood.
                    self.line.counters.bad_frames.add(1);
                    return Err(ServeConnection::Decode(error));
                }
            }
        }
        Ok(())
    }

    async fn start(&mut self, id: u64, request: Request) -> Result<(), ServeConnection> {
        match request {
            Request::Read(read) => {
                self.client_has(read.epoch);
                let (version, epoch, deadline) = (read.version, read.epoch, deadline(read.deadline_ms));
                let ask = Ask { version, epoch, deadline, flags: read.flags };
                let chunks = read.item.chunks.end - read.item.chunks.start;
                let ticket = Ticket::new(&self.line, id, ask.priority(), chunks);
                self.line.counters.reads.add(1);
                let work = answer_items(self.context(), Arc::clone(&ticket), ask, vec![read.item]);
                self.begin(ticket, Box::pin(work)).await
            }
            Request::BatchRead(batch) => {
                self.client_has(batch.epoch);
                let (version, epoch, deadline) = (batch.version, batch.epoch, deadline(batch.deadline_ms));
                let ask = Ask { version, epoch, deadline, flags: batch.flags };
                let chunks = batch.items.iter().map(|item| item.chunks.end - item.chunks.start).sum();
                let ticket = Ticket::new(&self.line, id, ask.priority(), chunks);
                self.line.counters.reads.add(1);
                let work = answer_items(self.context(), Arc::clone(&ticket), ask, batch.items);
                self.begin(ticket, Box::pin(work)).await
            }
            Request::Cancel => {
                if self.waiting.cancel(id) {
                    self.line.counters.cancelled.add(1);
                } else if let Some(open) = self.open.remove(&id) {
                    self.line.counters.cancelled.add(1);
                    self.line.counters.in_flight.sub(1);
                    open.task.abort();
                }
                Ok(())
            }
            Request::GetMembership => {
                let membership = self.shared.service.membership();
                self.told_epoch = self.told_epoch.max(membership.epoch);
                let answer = wire::Answer::Membership((*membership).clone());
                self.line.outgoing.push_small(|out| answer.encode(id, out));
                Ok(())
            }
            Request::GetIndex(get) => {
                let ticket = Ticket::new(&self.line, id, Priority::Prefetch, 1);
                let work = answer_index(self.context(), Arc::clone(&ticket), get);
                self.begin(ticket, Box::pin(work)).await
            }
            Request::Ping => {
                let epoch = self.shared.service.membership().epoch;
                self.line.outgoing.push_small(|out| wire::Answer::Pong { epoch }.encode(id, out));
                Ok(())
            }
            Request::GetMountSettings => {
                match self.shared.service.mount_settings() {
                    Some(settings) => {
                        let answer = wire::Answer::MountSettings(settings);
                        self.line.outgoing.push_small(|out| answer.encode(id, out));
                    }
                    None => {
                        let error = ReadError::new(ErrorCode::NotIndexed, "the dataset has no version yet");
                        self.small_error(id, error, self.shared.service.membership().epoch);
                    }
                }
                Ok(())
            }
            Request::Announce(announce) => {
                self.place.announce(announce);
                let epoch = self.shared.service.membership().epoch;
                self.line.outgoing.push_small(|out| wire::Answer::Pong { epoch }.encode(id, out));
                Ok(())
            }
        }
    }

    /// Polls a request's work once; what is not done then becomes a task.
    async fn begin(&mut self, ticket: Arc<Ticket>, mut work: Work) -> Result<(), ServeConnection> {
        let request = ticket.request;
        if self.is_stopping {
            let error = ReadError::new(ErrorCode::Stopping, "this worker is stopping");
            let epoch = self.shared.service.membership().epoch;
            self.small_error(request, error, epoch);
            return Ok(());
        }
        if self.open.contains_key(&request) {
            return Err(ServeConnection::OpenTwice { request });
        }
        // Where all room is taken the work waits for it in its task, of which a connection has a bounded number.
        let room = Arc::clone(&self.shared.requests).try_acquire_owned().ok();
        if room.is_some() && poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await {
            return Ok(());
        }
        let requests = Arc::clone(&self.shared.requests);
        let task = self.tasks.spawn(async move {
            let _room = match room {
                Some(room) => room,
                None => match requests.acquire_owned().await {
                    Ok(room) => room,
                    Err(_) => return request,
                },
            };
            work.await;
            request
        });
        self.line.counters.in_flight.add(1);
        self.open.insert(request, Open { ticket, task });
        Ok(())
    }

    fn end_task(&mut self, ended: Result<u64, tokio::task::JoinError>) -> Result<(), ServeConnection> {
        match ended {
            Ok(request) => {
                if self.open.remove(&request).is_some() {
                    self.line.counters.in_flight.sub(1);
                }
                Ok(())
            }
            Err(join) if join.is_panic() => {
                error!(peer = &*self.peer, error = %join, "a read panicked; its connection is closed");
                Err(ServeConnection::Panicked { reason: join.to_string() })
            }
            // Cancelled by the client, and taken off the table then.
            Err(_) => Ok(()),
        }
    }

    fn refuse_frame(&mut self, header: &FrameHeader, error: DecodeFrame) {
        self.line.counters.bad_frames.add(1);
        debug!(peer = &*self.peer, error = %error, "a frame was not understood");
        let code = match error {
            DecodeFrame::UnknownKind { .. } => ErrorCode::Unsupported,
            _ => ErrorCode::BadRequest,
        };
        let epoch = self.shared.service.membership().epoch;
        self.small_error(header.request, ReadError::new(code, error.to_string()), epoch);
    }

    fn small_error(&self, request: u64, error: ReadError, epoch: u64) {
        self.line.counters.errors.add(1);
        let ReadError { code, message } = error;
        let frame = ErrorFrame { item: WHOLE_REQUEST, code, epoch, message, is_last: true };
        self.line.outgoing.push_small(|out| wire::Answer::Error(frame).encode(request, out));
    }

    /// Says of each request that waits that it is alive.
    fn tell_pending(&self, every: Duration) {
        let (now_ms, silence_ms) = (self.line.now_ms(), every.as_millis() as u64 / 2);
        let due = self.open.values().filter(|open| open.ticket.is_due(now_ms, silence_ms));
        let due: Vec<u64> = due.map(|open| open.ticket.request).collect();
        if !due.is_empty() {
            let epoch = self.shared.service.membership().epoch;
            self.line.counters.pending.add(due.len() as u64);
            self.line.outgoing.push_small(|out| {
                due.iter().for_each(|request| wire::Answer::Pending { epoch }.encode(*request, out));
            });
        }
    }

    fn client_has(&mut self, epoch: u64) {
        self.told_epoch = self.told_epoch.max(epoch);
        self.tell_membership();
    }

    /// Sends the membership unasked, once, where the client has an older one.
    fn tell_membership(&mut self) {
        let membership = self.shared.service.membership();
        if self.told_epoch < membership.epoch {
            self.told_epoch = membership.epoch;
            let answer = wire::Answer::Membership((*membership).clone());
            self.line.outgoing.push_small(|out| answer.encode(0, out));
        }
    }

    fn context(&self) -> Context<B> {
        Context { shared: Arc::clone(&self.shared), peer: Arc::clone(&self.peer) }
    }
}

/// Says that nothing follows, and reads on for a moment: closing with unread bytes would reset the connection.
async fn linger(stream: &TcpStream) {
    // A socket that is already gone needs no goodbye.
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
    let until = Instant::now() + LINGER;
    let mut scratch = [0; 4096];
    while let Ok(Ok(())) = timeout_at(until, stream.readable()).await {
        match stream.try_read(&mut scratch) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
