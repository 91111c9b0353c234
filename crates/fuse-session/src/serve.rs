//! How do several threads serve one connection, and how do they end?

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use thiserror::Error;

use crate::backing::Backing;
use crate::channel::{Channel, Received};
use crate::dispatch::{Next, dispatch};
use crate::filesystem::Filesystem;
use crate::metrics::{MetricsSnapshot, count};
use crate::negotiate::Negotiated;
use crate::notify::Notifier;

/// Most threads of one connection: they only take requests, what waits is answered from elsewhere.
const MAX_THREADS: usize = 64;

/// A sleeping thread looks for messages this often unasked: the wake for one may have gone to a thread of a session that
/// was just stopping on the same connection.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Serving that could not start.
#[derive(Debug, Error)]
pub enum RunError {
    /// The number of threads is out of range.
    #[error("serve on {threads} threads: need 1 to {MAX_THREADS}")]
    Threads {
        /// The number given.
        threads: usize,
    },
    /// A descriptor to wait with could not be had.
    #[error("open descriptors to wait for requests")]
    OpenWait(#[source] Errno),
    /// A thread could not be started.
    #[error("start a session thread")]
    StartThread(#[source] std::io::Error),
}

/// Why serving ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// [`Running::stop`] was called; the mount is still there.
    Stopped,
    /// The mount went away.
    Unmounted,
    /// The connection was aborted.
    Aborted,
    /// The device could not be read.
    Failed(Errno),
}

/// A connection that is being served. Dropping it stops and waits for the threads; the mount stays as long as some
/// process holds the descriptor.
pub struct Running {
    channel: Arc<Channel>,
    negotiated: Negotiated,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<End>>,
}

/// A wish to stop, which wakes all threads and stays.
#[derive(Debug)]
struct Stop {
    is_wanted: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { is_wanted: AtomicBool::new(false), event })
    }

    fn wish(&self) {
        self.is_wanted.store(true, SeqCst);
        // Fails only when the counter is full, and then it wakes as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl Running {
    pub(crate) fn start<F: Filesystem>(
        channel: Arc<Channel>,
        negotiated: Negotiated,
        threads: usize,
        file_system: Arc<F>,
    ) -> Result<Self, RunError> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(RunError::Threads { threads });
        }
        let stop = Arc::new(Stop::new().map_err(RunError::OpenWait)?);
        let mut running = Self { channel, negotiated, stop, threads: Vec::with_capacity(threads) };
        for index in 0..threads {
            let waiter = Waiter::new(&running.channel, &running.stop).map_err(RunError::OpenWait)?;
            let (channel, stop) = (Arc::clone(&running.channel), Arc::clone(&running.stop));
            let file_system = Arc::clone(&file_system);
            let buffer_size = negotiated.buffer_size();
            let serve = move || serve(&channel, &stop, &waiter, file_system.as_ref(), buffer_size);
            let thread = std::thread::Builder::new().name(format!("fuse-{index}"));
            running.threads.push(thread.spawn(serve).map_err(RunError::StartThread)?);
        }
        Ok(running)
    }

    /// Asks the threads to end after the request each of them is at. Requests taken and not answered stay answerable.
    pub fn stop(&self) {
        self.stop.wish();
    }

    /// Tells whether all threads have ended.
    pub fn is_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for all threads and tells why the first of them ended.
    pub fn join(mut self) -> End {
        self.join_threads().unwrap_or(End::Stopped)
    }

    /// Gives what INIT settled.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Gives a way to hand files to the kernel.
    pub fn backing(&self) -> Backing {
        Backing::new(&self.channel)
    }

    /// Gives a sender of notifications.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(&self.channel)
    }

    /// Gives the counters.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.channel.metrics.snapshot(self.channel.in_flight.count())
    }

    fn join_threads(&mut self) -> Option<End> {
        let ends = self.threads.drain(..).map(|thread| thread.join().unwrap_or(End::Failed(Errno::FAULT)));
        // All are waited for; a reason beats a mere stop.
        ends.reduce(|first, next| if first == End::Stopped { next } else { first })
    }
}

impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.device.as_fd()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop.wish();
            self.join_threads();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { negotiated, threads, channel: _, stop: _ } = self;
        let threads = threads.len();
        formatter.debug_struct("Running").field("negotiated", negotiated).field("threads", &threads).finish()
    }
}

/// Waits for the device or a stop. Each thread has its own epoll instance, for that is the way to wake one thread for
/// one message: poll(2) would wake all.
#[derive(Debug)]
struct Waiter(OwnedFd);

impl Waiter {
    fn new(channel: &Channel, stop: &Stop) -> Result<Self, Errno> {
        let waiter = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(0);
        epoll::add(&waiter, &channel.device, data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
        epoll::add(&waiter, &stop.event, data, EventFlags::IN)?;
        Ok(Self(waiter))
    }

    fn wait(&self) -> Result<(), Errno> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 2];
        match epoll::wait(&self.0, events.as_mut_slice(), Some(&LOOK_EVERY)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Takes and serves messages until an end; what one thread does.
fn serve<F: Filesystem>(
    channel: &Arc<Channel>,
    stop: &Stop,
    waiter: &Waiter,
    file_system: &F,
    buffer_size: usize,
) -> End {
    let mut buffer = vec![0; buffer_size];
    loop {
        // Before a look at the wish to stop: this thread may have been the one that was woken for a message, and a
        // successor's threads would sleep on.
        let length = match channel.receive(&mut buffer) {
            Ok(Received::Message(length)) => length,
            Ok(Received::Unmounted) => return End::Unmounted,
            Ok(Received::Aborted) => return End::Aborted,
            Ok(Received::Nothing) if stop.is_wanted.load(SeqCst) => return End::Stopped,
            Ok(Received::Nothing) => match waiter.wait() {
                Ok(()) => continue,
                Err(errno) => return End::Failed(errno),
            },
            Err(errno) => return End::Failed(errno),
        };
        let message = buffer.get(..length).unwrap_or_default();
        // A panic would take one thread after the other until nobody answers any more; the request that was at hand is
        // answered EIO by its drop. What the file system protects by locks that poison is its own affair.
        let served = catch_unwind(AssertUnwindSafe(|| dispatch(channel, file_system, message)));
        match served {
            Ok(Next::GoOn) if stop.is_wanted.load(SeqCst) => return End::Stopped,
            Ok(Next::GoOn) => {}
            Ok(Next::End) => return End::Unmounted,
            Err(_) => {
                count(&channel.metrics.panics);
                tracing::error!("file system panicked while it served a request");
            }
        }
    }
}
