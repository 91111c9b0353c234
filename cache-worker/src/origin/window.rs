//! Which request may go to S3 next?
//!
//! One window for each endpoint, shared by all sources there. Foreground reads have the whole window to themselves:
//! they count only each other. Warm-up and listing get what the foreground leaves, and never the reserved share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::aimd::Aimd;
pub use super::aimd::Outcome;

/// Who waits for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// A reader.
    Foreground,
    /// Nobody at this moment: warm-up, listing, read-ahead past a wish.
    WarmUp,
}

/// Bounds of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowConfig {
    /// Requests that are always allowed.
    pub min: usize,
    /// Requests allowed at the start.
    pub initial: usize,
    /// Requests that are never exceeded.
    pub max: usize,
    /// Bytes that all requests under way may be asking for; a single larger request goes alone.
    pub max_bytes: u64,
}

impl Default for WindowConfig {
    /// 4 keep 30 % of 503s from starving reads; 128 connections at S3's 80 MB/s each are 10 GB/s, more than a worker
    /// can take; 512 MiB are 32 requests of 16 MiB (what the kernel and hyper buffer of them is far less).
    fn default() -> Self {
        Self { min: 4, initial: 16, max: 128, max_bytes: 512 << 20 }
    }
}

/// The window at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowNow {
    /// Requests allowed.
    pub limit: usize,
    /// Foreground requests under way.
    pub foreground: usize,
    /// Other requests under way.
    pub warm_up: usize,
    /// Bytes asked for by requests under way.
    pub bytes: u64,
    /// Foreground requests that wait for a place.
    pub foreground_waiting: usize,
    /// Other requests that wait for a place.
    pub warm_up_waiting: usize,
}

/// A window of requests.
#[derive(Debug)]
pub struct Window {
    config: WindowConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    aimd: Aimd,
    foreground: Lane,
    warm_up: Lane,
}

#[derive(Debug, Default)]
struct Lane {
    requests: usize,
    bytes: u64,
    /// Bounded by the callers: readers by their connections' limits, warm-up by its own concurrency.
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    bytes: u64,
    grant: oneshot::Sender<Permit>,
}

/// The right to have one request under way; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    window: Option<Arc<Window>>,
    priority: Priority,
    bytes: u64,
    outcome: Outcome,
}

impl Window {
    /// Opens a window.
    pub fn new(config: WindowConfig) -> Arc<Self> {
        let aimd = Aimd::new(config.min, config.initial, config.max);
        let state = State { aimd, foreground: Lane::default(), warm_up: Lane::default() };
        Arc::new(Self { config, state: Mutex::new(state) })
    }

    /// Waits for the right to ask for `bytes`.
    ///
    /// # Cancel safety
    ///
    /// Safe: a place that was granted to a caller who left goes to the next.
    pub async fn acquire(self: &Arc<Self>, priority: Priority, bytes: u64) -> Permit {
        let (grant, granted) = oneshot::channel();
        {
            let mut state = self.state.lock();
            let waiting = &mut state.lane(priority).waiting;
            waiting.retain(|waiter| !waiter.grant.is_closed());
            if waiting.is_empty() && state.admits(&self.config, priority, bytes) {
                state.enter(priority, bytes);
                return self.permit(priority, bytes);
            }
            state.lane(priority).waiting.push_back(Waiter { bytes, grant });
        }
        match granted.await {
            Ok(permit) => permit,
            // The sender lives in the window, which this call holds: it is only dropped after a grant.
            Err(_) => Permit { window: None, priority, bytes: 0, outcome: Outcome::Neutral },
        }
    }

    /// The window at this moment.
    pub fn now(&self) -> WindowNow {
        let state = self.state.lock();
        WindowNow {
            limit: state.aimd.limit(),
            foreground: state.foreground.requests,
            warm_up: state.warm_up.requests,
            bytes: state.foreground.bytes + state.warm_up.bytes,
            foreground_waiting: state.foreground.waiting.len(),
            warm_up_waiting: state.warm_up.waiting.len(),
        }
    }

    fn permit(self: &Arc<Self>, priority: Priority, bytes: u64) -> Permit {
        Permit { window: Some(self.clone()), priority, bytes, outcome: Outcome::Neutral }
    }

    fn leave(self: &Arc<Self>, priority: Priority, bytes: u64, outcome: Outcome) {
        let mut state = self.state.lock();
        let lane = state.lane(priority);
        lane.requests -= 1;
        lane.bytes -= bytes;
        let in_flight = state.foreground.requests + state.warm_up.requests;
        state.aimd.note(outcome, in_flight, Instant::now());
        self.admit_waiting(&mut state);
    }

    fn admit_waiting(self: &Arc<Self>, state: &mut State) {
        for priority in [Priority::Foreground, Priority::WarmUp] {
            while let Some(bytes) = state.lane(priority).waiting.front().map(|waiter| waiter.bytes) {
                if !state.admits(&self.config, priority, bytes) {
                    break;
                }
                let Some(waiter) = state.lane(priority).waiting.pop_front() else { break };
                state.enter(priority, bytes);
                if let Err(mut permit) = waiter.grant.send(self.permit(priority, bytes)) {
                    // Its owner left. Undone by hand: the permit's own drop would lock again.
                    permit.window = None;
                    let lane = state.lane(priority);
                    lane.requests -= 1;
                    lane.bytes -= bytes;
                }
            }
        }
    }
}

impl State {
    fn lane(&mut self, priority: Priority) -> &mut Lane {
        match priority {
            Priority::Foreground => &mut self.foreground,
            Priority::WarmUp => &mut self.warm_up,
        }
    }

    fn admits(&self, config: &WindowConfig, priority: Priority, bytes: u64) -> bool {
        let limit = self.aimd.limit();
        let (requests, in_flight_bytes, max_requests, max_bytes) = match priority {
            // Blind to warm-up, so that a read never waits behind it; the window is exceeded by at most warm-up's share.
            Priority::Foreground => {
                (self.foreground.requests, self.foreground.bytes, limit, config.max_bytes)
            }
            Priority::WarmUp if !self.foreground.waiting.is_empty() => return false,
            Priority::WarmUp => (
                self.foreground.requests + self.warm_up.requests,
                self.foreground.bytes + self.warm_up.bytes,
                limit - (limit / 4).min(limit - 1),
                config.max_bytes - config.max_bytes / 4,
            ),
        };
        requests < max_requests && (requests == 0 || in_flight_bytes + bytes <= max_bytes)
    }

    fn enter(&mut self, priority: Priority, bytes: u64) {
        let lane = self.lane(priority);
        lane.requests += 1;
        lane.bytes += bytes;
    }
}

impl Permit {
    /// Gives the place back and tells the window how the request ended.
    pub fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(window) = self.window.take() {
            window.leave(self.priority, self.bytes, self.outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn window(limit: usize, max_bytes: u64) -> Arc<Window> {
        Window::new(WindowConfig { min: limit, initial: limit, max: limit, max_bytes })
    }

    fn try_acquire(window: &Arc<Window>, priority: Priority, bytes: u64) -> Option<Permit> {
        window.acquire(priority, bytes).now_or_never()
    }

    #[test]
    fn a_foreground_read_never_waits_behind_warm_up() {
        let window = window(8, 1 << 30);
        let warm: Vec<_> = std::iter::from_fn(|| try_acquire(&window, Priority::WarmUp, 1)).collect();
        assert_eq!(warm.len(), 6, "a quarter is reserved");
        let reads: Vec<_> = std::iter::from_fn(|| try_acquire(&window, Priority::Foreground, 1)).collect();
        assert_eq!(reads.len(), 8);
        drop(warm);
        assert!(try_acquire(&window, Priority::WarmUp, 1).is_none(), "reads fill the window");
    }

    #[test]
    fn bytes_under_way_are_bounded_but_one_large_request_goes_alone() {
        let window = window(8, 100);
        let large = try_acquire(&window, Priority::Foreground, 1000).unwrap();
        assert!(try_acquire(&window, Priority::Foreground, 1).is_none());
        drop(large);
        let first = try_acquire(&window, Priority::Foreground, 60).unwrap();
        assert!(try_acquire(&window, Priority::Foreground, 60).is_none());
        assert!(try_acquire(&window, Priority::WarmUp, 20).is_none());
        drop(first);
        assert!(try_acquire(&window, Priority::WarmUp, 20).is_some());
    }

    #[tokio::test]
    async fn waiters_are_served_in_order_and_those_who_left_are_passed_over() {
        let window = window(1, 1 << 30);
        let held = window.acquire(Priority::Foreground, 1).await;
        let mut left = Box::pin(window.acquire(Priority::Foreground, 1));
        let mut warm = Box::pin(window.acquire(Priority::WarmUp, 1));
        let mut read = Box::pin(window.acquire(Priority::Foreground, 1));
        assert!((&mut left).now_or_never().is_none());
        assert!((&mut warm).now_or_never().is_none());
        assert!((&mut read).now_or_never().is_none());
        drop(left);
        drop(held);
        let read = read.await;
        assert!((&mut warm).now_or_never().is_none());
        read.end(Outcome::Answered);
        drop(warm.await);
        let now = window.now();
        assert_eq!((now.foreground, now.warm_up, now.bytes, now.foreground_waiting), (0, 0, 0, 0));
    }
}
