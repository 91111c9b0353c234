//! How does the operator talk with one worker? One task for each: orders go out when they change, the worker's state comes in.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::keys::Key;
use millrace_control::client::{Client, Unproven, client};
use millrace_control::proto;
use millrace_control::tonic::{Code, Status};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::orders::{Orders, Told, Warmed, use_request, warm_request};
use super::seen::{Seen, Trouble, matters};

/// How often a worker is asked whether it is there, and how long it may take to say so: a dead node sends no end of a
/// connection, and must be out of the membership within 10 s.
const BEAT_EVERY: Duration = Duration::from_secs(2);
const BEAT_ANSWER: Duration = Duration::from_secs(3);

/// For one order.
const ANSWER: Duration = Duration::from_secs(5);

/// Between two tries to connect: a restarted worker is back in a second or two.
const RETRY: Duration = Duration::from_millis(500);

/// How long moving numbers wait before they are told on.
const NUMBERS_EVERY: Duration = Duration::from_secs(5);

/// One worker's connection.
pub struct Connection {
    /// Its control port, `host:port`.
    pub address: String,
    /// What is known of it.
    pub seen: Arc<Mutex<Seen>>,
    /// The control key.
    pub key: Key,
    /// What it is to do.
    pub orders: watch::Receiver<Arc<Orders>>,
    /// Told of each change that matters.
    pub notify: Arc<dyn Fn() + Send + Sync>,
}

/// Why a connection ended.
enum End {
    /// The key is not taken.
    Refused(String),
    /// Nobody answers.
    Lost(String),
    /// An order is not taken; the worker is well.
    No(String),
}

impl Connection {
    /// Keeps the connection until `stop`.
    pub async fn keep(mut self, stop: CancellationToken) {
        let worker = self.seen.lock().name.clone();
        let mut last = None;
        loop {
            let end = tokio::select! {
                end = self.session() => end,
                () = stop.cancelled() => return,
            };
            let trouble = match end {
                End::Refused(why) => Trouble::KeyRefused(why),
                End::Lost(why) | End::No(why) => Trouble::Unreachable(why),
            };
            let is_news = {
                let mut seen = self.seen.lock();
                if seen.status.take().is_some() {
                    seen.since = Instant::now();
                }
                seen.told = Told::default();
                let is_news = seen.trouble.as_ref() != Some(&trouble);
                seen.trouble = Some(trouble.clone());
                is_news
            };
            if is_news && last.as_ref() != Some(&trouble) {
                tracing::info!(worker, trouble = ?trouble, "no connection to worker");
                (self.notify)();
            }
            last = Some(trouble);
            tokio::select! {
                () = sleep(RETRY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn session(&mut self) -> End {
        match self.try_session().await {
            Ok(()) => End::Lost("it ended the connection".to_owned()),
            Err(end) => end,
        }
    }

    async fn try_session(&mut self) -> Result<(), End> {
        let mut client =
            client(&self.address, self.key.clone()).map_err(|error| End::Lost(error.to_string()))?;
        let stream = in_time(ANSWER, client.status(proto::StatusRequest {})).await?;
        let mut stream = stream.into_inner();
        let first = in_time(ANSWER, stream.message()).await?;
        let Some(first) = first else { return Ok(()) };
        self.began(first);
        let mut beat = interval(BEAT_EVERY);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told_on = Instant::now();
        // Numbers have moved since then.
        let mut is_waiting = false;
        self.orders.mark_changed();
        loop {
            tokio::select! {
                message = stream.message() => {
                    let Some(status) = message.map_err(|status| end_of(&status))? else { return Ok(()) };
                    is_waiting = true;
                    if self.took(status) || told_on.elapsed() >= NUMBERS_EVERY {
                        (told_on, is_waiting) = (Instant::now(), false);
                        (self.notify)();
                    }
                    self.tell(&mut client).await?;
                }
                changed = self.orders.changed() => {
                    // The sender goes with the fleet, and this task with it.
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.tell(&mut client).await?;
                }
                _ = beat.tick() => {
                    in_time(BEAT_ANSWER, client.get_info(proto::GetInfoRequest {})).await?;
                    if is_waiting && told_on.elapsed() >= NUMBERS_EVERY {
                        (told_on, is_waiting) = (Instant::now(), false);
                        (self.notify)();
                    }
                }
            }
        }
    }

    fn began(&self, status: proto::WorkerStatus) {
        {
            let mut seen = self.seen.lock();
            tracing::info!(worker = seen.name, epoch = status.epoch, "connected to worker");
            seen.told = Told { epoch: status.epoch, ..Told::default() };
            seen.status = Some(status);
            seen.since = Instant::now();
            seen.was_connected = true;
            seen.trouble = None;
        }
        (self.notify)();
    }

    fn took(&self, status: proto::WorkerStatus) -> bool {
        let mut seen = self.seen.lock();
        let is_news = seen.status.as_ref().is_none_or(|old| matters(old, &status));
        seen.told.epoch = seen.told.epoch.max(status.epoch);
        seen.status = Some(status);
        is_news
    }

    /// Tells the worker what it has not been told yet.
    async fn tell(&mut self, client: &mut Client) -> Result<(), End> {
        let orders = Arc::clone(&self.orders.borrow_and_update());
        let (status, told) = {
            let seen = self.seen.lock();
            let Some(status) = seen.status.clone() else { return Ok(()) };
            (status, seen.told.clone())
        };
        if orders.membership.epoch > told.epoch {
            let membership = proto::Membership::from(&orders.membership);
            let epoch = in_time(ANSWER, client.set_membership(membership)).await?.into_inner().epoch;
            self.seen.lock().told.epoch = epoch;
            (self.notify)();
        }
        if let Some(request) = use_request(&orders, &status)
            && told.used.as_ref() != Some(&request)
        {
            let refused = refusal(in_time(ANSWER, client.use_versions(request.clone())).await)?;
            let mut seen = self.seen.lock();
            if let Some(why) = &refused {
                tracing::warn!(worker = seen.name, why, "worker does not take the version");
            }
            seen.told.used = Some(request);
            seen.complaint = refused;
        }
        if let Some(request) = warm_request(&orders, &status, &told) {
            let version = request.version.clone();
            match in_time(ANSWER, client.warm(request)).await {
                Ok(answer) => {
                    let mut seen = self.seen.lock();
                    let (epoch, order) = (status.epoch, orders.warm_up.clone());
                    seen.told.warmed = Some(Warmed { version, epoch, order });
                    seen.unknown_paths = answer.into_inner().unknown_paths;
                }
                // It has lost the index meanwhile, or the like: its next state says so, and the order is given again.
                Err(End::No(why)) => tracing::debug!(why, "warm-up not taken"),
                Err(end) => return Err(end),
            }
            (self.notify)();
        }
        Ok(())
    }
}

/// What a worker says against an order; other ends are the connection's.
fn refusal<T>(answer: Result<T, End>) -> Result<Option<String>, End> {
    match answer {
        Ok(_) => Ok(None),
        Err(End::No(why)) => Ok(Some(why)),
        Err(end) => Err(end),
    }
}

async fn in_time<T>(deadline: Duration, answer: impl Future<Output = Result<T, Status>>) -> Result<T, End> {
    match timeout(deadline, answer).await {
        Ok(answer) => answer.map_err(|status| end_of(&status)),
        Err(_) => Err(End::Lost(format!("no answer within {deadline:?}"))),
    }
}

fn end_of(status: &Status) -> End {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<Unproven>() {
            return End::Refused(error.to_string());
        }
        cause = error.source();
    }
    match status.code() {
        Code::Unauthenticated => End::Refused(status.message().to_owned()),
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::ResourceExhausted => {
            End::No(status.message().to_owned())
        }
        code if status.message().is_empty() => End::Lost(format!("{code:?}")),
        _ => End::Lost(status.message().to_owned()),
    }
}
