//! Where do the pieces of an answer go?

use super::{Answer, Unwanted};

/// Takes the pieces of one answer.
#[derive(Debug)]
pub struct AnswerSink {}

impl AnswerSink {
    /// Queues a piece; waits while the client is slower than the worker.
    ///
    /// # Errors
    /// [`Unwanted`] when the connection is gone.
    ///
    /// # Cancel safety
    /// A dropped call has either queued the piece or not; nothing is sent twice.
    pub async fn send(&self, answer: Answer) -> Result<(), Unwanted> {
        let _ = answer;
        Ok(())
    }
}
