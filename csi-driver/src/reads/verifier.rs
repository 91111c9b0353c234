//! When are whole files of the node store verified, apart from what an open waits for?
//!
//! Behind the reader that completed them, one after the other; and all that were verified once, now and then, at a bounded
//! rate (the scrub), since nobody compares the bytes that the kernel reads itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_api::block::Span;
use millrace_api::ids::ContentId;
use millrace_store::{Store, Verification, Whole};
use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio_util::sync::CancellationToken;

/// Most files that wait; further ones are verified when they are opened.
const MAX_WAITING: usize = 1024;

/// How long a file is left alone whose verification came to nothing: on a read-only disk nothing can be noted, and each
/// open would verify it anew. New chunks end it. Guess.
const LEAVE_ALONE: Duration = Duration::from_secs(60);

/// Most files left alone; beyond that all are tried again.
const MAX_LEFT_ALONE: usize = 1024;

/// Longest sleep of the scrub at a time, so that it ends soon when it must.
const SLEEP: Duration = Duration::from_millis(100);

/// Labels of what a verification found, in the order of [`Verification`].
const RESULTS: [&str; 4] = ["verified", "incomplete", "bad", "undecided"];

/// How fast and how often the node store is scrubbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubPace {
    /// Bytes read in a second; 0: no scrub.
    pub bytes_per_second: u64,
    /// From the start of one pass to that of the next, at least.
    pub every: Duration,
}

/// Verifies files of one node store.
#[derive(Debug)]
pub struct Verifier {
    store: Store,
    queue: Sender<Span>,
    waiting: Mutex<HashSet<ContentId>>,
    left_alone: Mutex<HashMap<ContentId, Instant>>,
    verifications: [IntCounter; RESULTS.len()],
    scrubbed_bytes: IntCounter,
}

impl Verifier {
    /// Registers the counters; what is asked for waits in the second part until [`run`](Self::run) has it.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn register(
        registry: &Registry,
        store: Store,
    ) -> Result<(Arc<Self>, Receiver<Span>), prometheus::Error> {
        let verifications = IntCounterVec::new(
            Opts::new(
                "csi_driver_verifications_total",
                "Whole files of the node store that were compared with their checksums, by result.",
            ),
            &["result"],
        )?;
        let scrubbed_bytes = IntCounter::new(
            "csi_driver_scrub_bytes_total",
            "Bytes of the node store that were compared with their checksums in the background.",
        )?;
        registry.register(Box::new(verifications.clone()))?;
        registry.register(Box::new(scrubbed_bytes.clone()))?;
        let (queue, asked) = channel(MAX_WAITING);
        // So that all of them are shown from the start.
        let verifications = RESULTS.map(|result| verifications.with_label_values(&[result]));
        let (waiting, left_alone) = (Mutex::default(), Mutex::default());
        Ok((Arc::new(Self { store, queue, waiting, left_alone, verifications, scrubbed_bytes }), asked))
    }

    /// Has a file verified soon, where all of it is there. Cheap; dropped where too many wait.
    pub fn ask(&self, span: Span) {
        if !self.is_worth_it(&span) {
            return;
        }
        if self.waiting.lock().insert(span.file.content) && self.queue.try_send(span).is_err() {
            self.waiting.lock().remove(&span.file.content);
        }
    }

    /// Hears that chunks of a file were stored: with the last of them it can be verified.
    pub fn stored(&self, span: &Span) {
        if self.store.whole(span) == Whole::Unverified {
            self.left_alone.lock().remove(&span.file.content);
            self.ask(*span);
        }
    }

    /// Whether a file should be verified now, as far as is known of earlier tries.
    pub fn is_worth_it(&self, span: &Span) -> bool {
        let left_alone = self.left_alone.lock();
        left_alone.get(&span.file.content).is_none_or(|since| since.elapsed() >= LEAVE_ALONE)
    }

    /// Verifies a file and counts that. Blocks.
    pub fn verify(&self, span: &Span, mut go_on: impl FnMut() -> bool) {
        let found = self.store.verify(span, &mut |_| go_on());
        self.count(found);
        let mut left_alone = self.left_alone.lock();
        if found == Verification::Verified {
            left_alone.remove(&span.file.content);
            return;
        }
        if left_alone.len() >= MAX_LEFT_ALONE {
            left_alone.clear();
        }
        left_alone.insert(span.file.content, Instant::now());
    }

    fn count(&self, found: Verification) {
        let [verified, incomplete, bad, undecided] = &self.verifications;
        match found {
            Verification::Verified => verified,
            Verification::Incomplete => incomplete,
            Verification::Bad => bad,
            Verification::Undecided => undecided,
        }
        .inc();
    }

    /// Verifies what is asked for, until the token is cancelled.
    pub async fn run(self: Arc<Self>, mut asked: Receiver<Span>, token: CancellationToken) {
        loop {
            let span = tokio::select! {
                span = asked.recv() => span,
                () = token.cancelled() => return,
            };
            let Some(span) = span else { return };
            let (this, token) = (Arc::clone(&self), token.clone());
            let verify = move || {
                // Taken out first: chunks that come from here on ask again.
                this.waiting.lock().remove(&span.file.content);
                this.verify(&span, || !token.is_cancelled());
            };
            // A panic in it was logged; the file stays unverified.
            let _ = tokio::task::spawn_blocking(verify).await;
        }
    }

    /// Scrubs until the token is cancelled.
    pub async fn scrub(self: Arc<Self>, pace: ScrubPace, token: CancellationToken) {
        if pace.bytes_per_second == 0 {
            return;
        }
        loop {
            let next = tokio::time::Instant::now() + pace.every;
            let (this, stop) = (Arc::clone(&self), token.clone());
            let pass = move || this.scrub_once(pace, &stop);
            // As above.
            let _ = tokio::task::spawn_blocking(pass).await;
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = token.cancelled() => return,
            }
        }
    }

    fn scrub_once(&self, pace: ScrubPace, token: &CancellationToken) {
        let mut due = Instant::now();
        let mut go_on = |bytes: u64| {
            self.scrubbed_bytes.inc_by(bytes);
            due = due.max(Instant::now() - SLEEP)
                + Duration::from_secs_f64(bytes as f64 / pace.bytes_per_second as f64);
            while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                if token.is_cancelled() {
                    return false;
                }
                std::thread::sleep(left.min(SLEEP));
            }
            !token.is_cancelled()
        };
        match self.store.scrub(&mut go_on) {
            Ok(done) if done.files > 0 => {
                tracing::debug!(files = done.files, bad_files = done.bad_files, "node store scrubbed");
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(error = %error, "scrub node store"),
        }
    }
}
