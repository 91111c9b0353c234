//! How does a worker read from S3?
//!
//! The only place that talks to S3, and it only lists and gets. One [`Origin`] for each source; origins of one endpoint
//! share a [`Window`], all of a worker share [`Counters`].
//!
//! A request that fails for a reason that may pass is tried again until the caller's deadline, so that an outage shorter
//! than that is never an error; [`Origin::trouble`] says what is being waited for meanwhile.

mod aimd;
mod classify;
mod client;
pub mod config;
pub mod counters;
mod credentials;
pub mod error;
mod folder;
mod get;
mod head;
mod list;
mod names;
mod retry;
mod tls;
mod trouble;
pub mod window;

#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use classify::Verdict;
use client::Clients;
pub use client::OpenOrigin;
use config::OriginConfig;
use counters::Counters;
use error::{OriginError, OriginErrorKind};
pub use get::{GetStream, ObjectVersion};
pub use list::{Listed, Page, PageStart};
use retry::{Remedy, Retry};
pub use trouble::Troubled;
use trouble::{Asked, Trouble};
use window::{Priority, Window};

/// How long a look whether trouble is over may take: several tries of an endpoint that does not answer.
const LOOK_AGAIN_FOR: Duration = Duration::from_secs(10);

/// The S3 side of one source; cheap to clone.
#[derive(Debug, Clone)]
pub struct Origin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clients: Clients,
    window: Arc<Window>,
    counters: Arc<Counters>,
    trouble: Mutex<Trouble>,
}

impl Origin {
    /// Sets a source up; sends nothing yet.
    ///
    /// # Errors
    ///
    /// The certificates that the configuration names cannot be read or used.
    pub fn new(
        config: OriginConfig,
        window: Arc<Window>,
        counters: Arc<Counters>,
    ) -> Result<Self, OpenOrigin> {
        let clients = Clients::new(config)?;
        Ok(Self(Arc::new(Inner { clients, window, counters, trouble: Mutex::default() })))
    }

    /// Reads a range of an object version, tried again until `deadline`.
    ///
    /// The request is sent by the first [`GetStream::next`]. One stream is one request at a time: ask for at most 16 MiB.
    pub fn get(
        &self,
        object: ObjectVersion,
        range: Range<u64>,
        priority: Priority,
        deadline: Instant,
    ) -> GetStream {
        GetStream::new(self.clone(), object, range, priority, deadline)
    }

    /// Lists one page of the keys that begin with `prefix`, tried again until `deadline`.
    ///
    /// # Errors
    ///
    /// The last failure, when the deadline has passed or trying again is of no use.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn list_page(
        &self,
        prefix: &str,
        start: &PageStart,
        priority: Priority,
        deadline: Instant,
    ) -> Result<Page, OriginError> {
        list::page(self, prefix, start, priority, deadline).await
    }

    /// Why requests have been failing lately, if they have: what reads are waiting for.
    pub fn trouble(&self) -> Option<Troubled> {
        self.0.trouble.lock().now()
    }

    /// Asks once more for what failed last, a byte of it, so that trouble ends though nobody reads; nothing where there is
    /// none. What comes of it is seen in [`trouble`](Self::trouble).
    pub async fn look_again(&self) {
        let asked = self.0.trouble.lock().asked();
        let deadline = Instant::now() + LOOK_AGAIN_FOR;
        // Either outcome is noted where each request's is.
        match asked {
            Some(Asked::Get(object)) => drop(self.get(object, 0..1, Priority::WarmUp, deadline).next().await),
            Some(Asked::List(prefix)) => {
                drop(self.list_page(&prefix, &PageStart::First, Priority::WarmUp, deadline).await);
            }
            None => {}
        }
    }

    /// Counts the changes of the credentials, after a look at them.
    pub fn look_at_credentials(&self) -> u64 {
        self.0.clients.look_at_credentials()
    }

    /// The window that requests of this source go through.
    pub fn window(&self) -> &Arc<Window> {
        &self.0.window
    }

    /// Where requests of this source are counted.
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// How the source is reached.
    pub fn config(&self) -> &OriginConfig {
        self.0.clients.config()
    }

    fn clients(&self) -> &Clients {
        &self.0.clients
    }

    /// Counts a failed try and waits until the next; the error if there is to be none.
    async fn failed(&self, retry: &mut Retry, asked: &Asked, verdict: Verdict) -> Result<(), OriginError> {
        let Verdict { kind, said, region } = verdict;
        let Inner { clients, counters, .. } = &*self.0;
        counters.failed(kind);
        let (kind, said) = retry.cause(kind, said, Instant::now());
        let remedy = Remedy {
            // S3 names the region in other refusals too.
            went_to_region: kind == OriginErrorKind::Region
                && region.is_some_and(|region| clients.learn_region(&region)),
            has_new_credentials: kind.is_about_credentials()
                && clients.look_at_credentials() != retry.was_sent_with(),
        };
        let pause = retry.pause(kind, remedy, rand::random(), Instant::now());
        let error =
            OriginError::new(kind, asked.request(), clients.target(), asked.object(), said, retry.tries());
        self.note_failure(&error, asked, retry.in_a_row(), pause.is_none());
        let Some(pause) = pause else { return Err(error) };
        debug!(bucket = self.config().bucket, object = asked.object(), error = %error, "origin request tried again");
        counters.retried();
        tokio::time::sleep(pause).await;
        Ok(())
    }

    fn note_failure(&self, error: &OriginError, asked: &Asked, in_a_row: u32, is_last: bool) {
        if error.kind().is_about_object() {
            return self.went_well();
        }
        let now = Instant::now().into_std();
        let is_of_weight = error.is_transient() || is_last;
        if is_of_weight && self.0.trouble.lock().failed(error, asked, in_a_row, now) {
            warn!(bucket = self.config().bucket, error = %error, "origin in trouble");
        }
    }

    fn went_well(&self) {
        if self.0.trouble.lock().answered(Instant::now().into_std()) {
            info!(bucket = self.config().bucket, "origin answers again");
        }
    }
}
