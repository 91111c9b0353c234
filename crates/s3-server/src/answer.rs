//! How does an answer's body reach the connection: counted, paced, and cut where a fault says so?

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use s3s::StdError;
use tokio::time::Sleep;

use crate::connection::Ending;
use crate::counters::Flight;
use crate::faults::active::Decision;
use crate::faults::pace::Pace;
use crate::faults::rule::Fault;

/// Between the last bytes of a cut body and the end of its connection, so that they are on the way before: a few times
/// what a flush to a local socket takes.
const FLUSH: Duration = Duration::from_millis(5);

/// A timer wakes up to this much late (tokio counts in milliseconds), so bytes are sent when they are due within it:
/// on the average neither early nor late. Without this a stream of short answers is a tenth too slow.
const TICK: Duration = Duration::from_millis(1);

/// The body of any answer.
pub(crate) struct Answer {
    inner: s3s::Body,
    flight: Flight,
    pace: Option<Pace>,
    cut: Option<Cut>,
    /// Taken from `inner`, not yet scheduled.
    held: Bytes,
    /// Scheduled, until the timer says that it is due.
    scheduled: Bytes,
    timer: Option<Pin<Box<Sleep>>>,
}

struct Cut {
    /// Bytes until the body is cut.
    left: u64,
    how: How,
    ending: Ending,
    flushed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Truncate,
    Reset,
    Stall,
}

/// Tells hyper that the body has failed, so that it closes the connection.
#[derive(Debug, thiserror::Error)]
#[error("the body is cut short by the fault plan")]
struct CutShort;

impl Answer {
    /// A body without faults.
    pub fn whole(inner: s3s::Body, flight: Flight) -> Self {
        Self {
            inner,
            flight,
            pace: None,
            cut: None,
            held: Bytes::new(),
            scheduled: Bytes::new(),
            timer: None,
        }
    }

    /// A body under the caps and faults of its request.
    pub fn faulty(
        inner: s3s::Body,
        flight: Flight,
        pace: Option<Pace>,
        decision: &Decision,
        ending: &Ending,
    ) -> Self {
        let cut = decision.faults.iter().find_map(|fault| {
            let (left, how) = match fault {
                Fault::Truncate { after } => (after.0, How::Truncate),
                Fault::Reset { after } => (after.0, How::Reset),
                Fault::Stall { after } => (after.0, How::Stall),
                _ => return None,
            };
            Some(Cut { left, how, ending: ending.clone(), flushed: false })
        });
        Self { pace, cut, ..Self::whole(inner, flight) }
    }

    /// The next bytes, as many as the pace lets go at once.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StdError>>> {
        loop {
            if let Some(timer) = &mut self.timer {
                ready!(timer.as_mut().poll(cx));
                self.timer = None;
            }
            if !self.scheduled.is_empty() {
                return Poll::Ready(Some(Ok(std::mem::take(&mut self.scheduled))));
            }
            if self.held.is_empty() {
                match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                    Some(Ok(frame)) => self.held = frame.into_data().unwrap_or_default(),
                    Some(Err(err)) => return Poll::Ready(Some(Err(err))),
                    None => return Poll::Ready(None),
                }
            }
            let Some(pace) = &mut self.pace else {
                return Poll::Ready(Some(Ok(std::mem::take(&mut self.held))));
            };
            self.scheduled = self.held.split_to(self.held.len().min(pace.quantum));
            let now = Instant::now();
            let early = pace.reserve(self.scheduled.len(), now).checked_sub(TICK).unwrap_or(now);
            if early > now {
                self.timer = Some(Box::pin(tokio::time::sleep_until(early.into())));
            }
        }
    }

    /// What happens where the body is cut.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StdError>>> {
        let Some(cut) = &mut self.cut else { return Poll::Ready(None) };
        if cut.how == How::Stall {
            // Woken by nothing: hyper drops the body when the peer or the server closes the connection.
            return Poll::Pending;
        }
        if !cut.flushed {
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(FLUSH)));
            ready!(timer.as_mut().poll(cx));
            cut.flushed = true;
            self.timer = None;
        }
        if cut.how == How::Reset {
            cut.ending.reset();
        }
        Poll::Ready(Some(Err(Box::new(CutShort))))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        if this.cut.as_ref().is_some_and(|cut| cut.left == 0) {
            return this.poll_cut(cx).map_ok(Frame::data);
        }
        let mut bytes = match ready!(this.poll_bytes(cx)) {
            Some(Ok(bytes)) => bytes,
            Some(Err(err)) => return Poll::Ready(Some(Err(err))),
            None => return Poll::Ready(None),
        };
        if let Some(cut) = &mut this.cut {
            bytes.truncate(usize::try_from(cut.left).unwrap_or(usize::MAX));
            cut.left -= bytes.len() as u64;
            (this.held, this.scheduled) = if cut.left == 0 {
                Default::default()
            } else {
                (std::mem::take(&mut this.held), Bytes::new())
            };
        }
        this.flight.sent(bytes.len());
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.cut.is_none() && self.held.is_empty() && self.scheduled.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let waiting = (self.held.len() + self.scheduled.len()) as u64;
        match self.inner.size_hint().exact() {
            Some(exact) => SizeHint::with_exact(exact + waiting),
            None => SizeHint::default(),
        }
    }
}
