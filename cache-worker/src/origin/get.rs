//! How do the bytes of one range of one object version come in?
//!
//! One ranged GET, with `If-Match`, as a stream of pieces. Whatever breaks is taken up where the last piece ended; what
//! the server says about the object is compared before a byte is passed on, so the pieces are always of the version
//! that was asked for.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::RequestPayer;
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::Origin;
use super::classify::{self, Verdict};
use super::config::Deadlines;
use super::error::{OriginError, OriginErrorKind as Kind, Request};
use super::head::{self, Head};
use super::retry::Retry;
use super::trouble::Asked;
use super::window::{Outcome, Permit, Priority};

/// One version of one object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectVersion {
    /// The whole key. Keys that are not UTF-8 cannot be asked for.
    pub key: String,
    /// The ETag without its quotes; empty where the listing had none, then only the size is compared.
    pub etag: String,
    /// Size of the whole object, bytes.
    pub size: u64,
}

/// The bytes of a range, piece by piece.
///
/// Dropping it cancels the request.
#[derive(Debug)]
pub struct GetStream {
    origin: Origin,
    object: ObjectVersion,
    /// What is still to come.
    left: Range<u64>,
    priority: Priority,
    retry: Retry,
    open: Option<Open>,
    failed: Option<OriginError>,
    /// Whether the request has passed the window: until then nothing was sent.
    is_sent: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Open {
    body: ByteStream,
    permit: Permit,
}

impl GetStream {
    pub(super) fn new(
        origin: Origin,
        object: ObjectVersion,
        range: Range<u64>,
        priority: Priority,
        deadline: Instant,
    ) -> Self {
        let left = range.start.min(object.size)..range.end.min(object.size);
        Self {
            origin,
            object,
            left,
            priority,
            retry: Retry::new(deadline),
            open: None,
            failed: None,
            is_sent: Arc::default(),
        }
    }

    /// Becomes true when the request has left the window's queue; may be watched while [`next`](Self::next) waits.
    pub fn is_sent(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_sent)
    }

    /// The range that is still to come; a range past the object's end is cut to it.
    pub fn left(&self) -> Range<u64> {
        self.left.clone()
    }

    /// The next piece; `None` after the last byte of the range.
    ///
    /// # Errors
    ///
    /// The first error is final, and is what every later call gives.
    ///
    /// # Cancel safety
    ///
    /// Safe: a call that was dropped is taken up by the next.
    pub async fn next(&mut self) -> Result<Option<Bytes>, OriginError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while !self.left.is_empty() {
            let verdict = match self.piece().await {
                Ok(piece) => {
                    self.origin.counters().received(piece.len());
                    self.left.start += piece.len() as u64;
                    self.retry.progressed();
                    if self.left.is_empty() {
                        self.close(Outcome::Answered);
                        self.origin.went_well();
                    }
                    return Ok(Some(piece));
                }
                Err(verdict) => verdict,
            };
            self.close(outcome_of(verdict.kind));
            let failed = self.origin.failed(&mut self.retry, &Asked::Get(self.object.clone()), verdict).await;
            if let Err(error) = failed {
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(None)
    }

    fn close(&mut self, outcome: Outcome) {
        if let Some(Open { body, permit }) = self.open.take() {
            drop(body);
            permit.end(outcome);
        }
    }

    /// One piece, at least one byte and not more than is left.
    async fn piece(&mut self) -> Result<Bytes, Verdict> {
        if self.open.is_none() {
            let open = self.ask().await?;
            self.open = Some(open);
        }
        let Some(open) = &mut self.open else { return Err(said(Kind::Unexpected, "no body")) };
        let wait = Deadlines::grown(self.origin.config().deadlines.stall, self.retry.in_a_row());
        let until = (Instant::now() + wait).min(self.retry.deadline());
        loop {
            match timeout_at(until, open.body.next()).await {
                Err(_) => return Err(said(Kind::TimedOut, "the body stalled")),
                Ok(None) => {
                    return Err(said(Kind::Truncated, &format!("{} bytes are missing", count(&self.left))));
                }
                Ok(Some(Err(err))) => return Err(classify::of_body(&err)),
                Ok(Some(Ok(piece))) if piece.is_empty() => {}
                Ok(Some(Ok(piece))) if piece.len() as u64 > count(&self.left) => {
                    return Err(said(Kind::WrongRange, "more bytes than asked for"));
                }
                Ok(Some(Ok(piece))) => return Ok(piece),
            }
        }
    }

    /// Sends the request and judges the head of the answer.
    async fn ask(&mut self) -> Result<Open, Verdict> {
        let deadline = self.retry.deadline();
        let permit = timeout_at(deadline, self.origin.window().acquire(self.priority, count(&self.left)))
            .await
            .map_err(|_| said(Kind::TimedOut, "no place in the window of requests"))?;
        let wait = Deadlines::grown(self.origin.config().deadlines.first_byte, self.retry.in_a_row());
        let until = (Instant::now() + wait).min(deadline);
        self.retry.sent_with(self.origin.clients().credentials_generation());
        self.is_sent.store(true, Ordering::Relaxed);
        self.origin.counters().sent(Request::Get);
        let judged = match timeout_at(until, self.send()).await {
            Err(_) => Err(said(Kind::TimedOut, "no first byte")),
            Ok(Err(verdict)) => Err(verdict),
            Ok(Ok(answer)) => self.judge(answer),
        };
        match judged {
            Ok(body) => Ok(Open { body, permit }),
            Err(verdict) => {
                permit.end(outcome_of(verdict.kind));
                Err(verdict)
            }
        }
    }

    async fn send(&self) -> Result<GetObjectOutput, Verdict> {
        let config = self.origin.config();
        let client = self.origin.clients().now();
        let mut call = client.s3.get_object().bucket(&config.bucket).key(&self.object.key);
        if !self.asks_for_all() {
            call = call.range(format!("bytes={}-{}", self.left.start, self.left.end - 1));
        }
        if !self.object.etag.is_empty() {
            call = call.if_match(format!("\"{}\"", self.object.etag));
        }
        if config.requester_pays {
            call = call.request_payer(RequestPayer::Requester);
        }
        call.send().await.map_err(|err| classify::of_call(&err))
    }

    fn asks_for_all(&self) -> bool {
        self.left == (0..self.object.size)
    }

    fn judge(&self, answer: GetObjectOutput) -> Result<ByteStream, Verdict> {
        let head = Head {
            etag: answer.e_tag.as_deref(),
            content_range: answer.content_range.as_deref(),
            content_length: answer.content_length.and_then(|len| u64::try_from(len).ok()),
        };
        match head::judge(&self.object, &self.left, head) {
            Ok(()) => Ok(answer.body),
            Err((kind, words)) => Err(said(kind, &words)),
        }
    }
}

fn said(kind: Kind, words: &str) -> Verdict {
    Verdict { kind, said: words.to_owned(), region: None }
}

fn count(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// What a failure says about the window.
pub(super) fn outcome_of(kind: Kind) -> Outcome {
    match kind {
        Kind::Throttled | Kind::TimedOut => Outcome::Overload,
        _ => Outcome::Neutral,
    }
}
