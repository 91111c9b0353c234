//! Does a call, and its answer, come from somebody who holds the control key?
//!
//! A call carries a time, a random nonce and an HMAC over its method, time and nonce; the answer's headers carry the
//! server's HMAC over the same. So a call is accepted once, within [`WINDOW`] of its time, and for its method only; and the
//! client knows that the worker holds the key before it reads a word of the answer. What this does not do: it hides nothing,
//! and does not cover the messages themselves; against somebody on the path between the two, use TLS.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use millrace_api::keys::{KEY_BYTES, Key, Side};
use sha2::{Digest, Sha256};
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue};

/// How far two clocks may be apart, and how long a call can be played back to a worker that has restarted since. Five
/// minutes as in Kerberos: far more than a machine with any time synchronisation is off.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);

/// Calls remembered against playing back: 10 a second for a [`WINDOW`] twice over. With more, the oldest are refused.
const MAX_SEEN: usize = 65_536;

const TIME: HeaderName = HeaderName::from_static("millrace-time-ms");
const NONCE: HeaderName = HeaderName::from_static("millrace-nonce");
const PROOF: HeaderName = HeaderName::from_static("millrace-proof");

/// What a proof is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// Hash of the method's path and the time.
    context: [u8; KEY_BYTES],
    time_ms: u64,
    nonce: [u8; KEY_BYTES],
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdmitCall {
    #[error("the call carries no valid proof of the control key")]
    NoProof,
    #[error("the call's proof is not of this dataset's control key")]
    WrongKey,
    #[error("the call is {seconds} s off this worker's clock; set both clocks")]
    OffTime { seconds: u64 },
    #[error("the call was made before")]
    PlayedBack,
}

/// Calls that were admitted and may not be again.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    calls: BTreeSet<(u64, [u8; KEY_BYTES])>,
    /// Calls up to this time may have been forgotten.
    forgotten_ms: u64,
}

impl Call {
    pub(crate) fn new(method: &str, time_ms: u64, nonce: [u8; KEY_BYTES]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(b"millrace control call 1");
        hasher.update(time_ms.to_le_bytes());
        hasher.update(method.as_bytes());
        Self { context: hasher.finalize().into(), time_ms, nonce }
    }

    /// Puts the proof of the client into the headers of a call.
    pub(crate) fn write(&self, key: &Key, headers: &mut HeaderMap) {
        headers.insert(TIME, HeaderValue::from(self.time_ms));
        headers.insert(NONCE, hex(&self.nonce));
        headers.insert(PROOF, hex(&key.prove(Side::Client, &self.context, &self.nonce)));
    }

    /// Reads and checks the headers of a call of `method`.
    pub(crate) fn read(key: &Key, method: &str, headers: &HeaderMap) -> Result<Self, AdmitCall> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let time_ms = text(TIME).and_then(|text| text.parse().ok()).ok_or(AdmitCall::NoProof)?;
        let nonce = text(NONCE).and_then(unhex).ok_or(AdmitCall::NoProof)?;
        let proof = text(PROOF).and_then(unhex).ok_or(AdmitCall::NoProof)?;
        let call = Self::new(method, time_ms, nonce);
        if key.verify(Side::Client, &call.context, &nonce, &proof) {
            Ok(call)
        } else {
            Err(AdmitCall::WrongKey)
        }
    }

    /// Puts the proof of the server into the headers of the answer.
    pub(crate) fn write_answer(&self, key: &Key, headers: &mut HeaderMap) {
        headers.insert(PROOF, hex(&key.prove(Side::Server, &self.context, &self.nonce)));
    }

    /// Whether an answer's headers prove that the server holds the key.
    pub(crate) fn is_answered(&self, key: &Key, headers: &HeaderMap) -> bool {
        let proof = headers.get(PROOF).and_then(|value| value.to_str().ok()).and_then(unhex);
        proof.is_some_and(|proof| key.verify(Side::Server, &self.context, &self.nonce, &proof))
    }
}

impl Seen {
    /// Admits a call whose proof was right, once and near its time.
    pub(crate) fn admit(&mut self, call: &Call, now_ms: u64) -> Result<(), AdmitCall> {
        let window_ms = WINDOW.as_millis() as u64;
        let off_ms = now_ms.abs_diff(call.time_ms);
        if off_ms > window_ms {
            return Err(AdmitCall::OffTime { seconds: off_ms / 1000 });
        }
        while let Some((time_ms, _)) = self.calls.first()
            && (*time_ms < now_ms.saturating_sub(window_ms) || self.calls.len() >= MAX_SEEN)
        {
            self.forgotten_ms = self.forgotten_ms.max(*time_ms);
            self.calls.pop_first();
        }
        if call.time_ms <= self.forgotten_ms || !self.calls.insert((call.time_ms, call.nonce)) {
            return Err(AdmitCall::PlayedBack);
        }
        Ok(())
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_millis() as u64)
}

fn hex(bytes: &[u8; KEY_BYTES]) -> HeaderValue {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&text).expect("hexadecimal digits may stand in a header")
}

fn unhex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHOD: &str = "/millrace.control.v1.Control/Warm";
    const NOW: u64 = 1_700_000_000_000;

    fn key() -> Key {
        Key::new([3; KEY_BYTES])
    }

    #[test]
    fn a_call_is_read_back_with_its_key_and_method_only() {
        let call = Call::new(METHOD, NOW, [9; KEY_BYTES]);
        let mut headers = HeaderMap::new();
        call.write(&key(), &mut headers);
        assert_eq!(Call::read(&key(), METHOD, &headers), Ok(call));
        assert_eq!(Call::read(&Key::new([4; 32]), METHOD, &headers), Err(AdmitCall::WrongKey));
        assert_eq!(Call::read(&key(), "/other", &headers), Err(AdmitCall::WrongKey));
        headers.insert(TIME, HeaderValue::from(NOW + 1));
        assert_eq!(Call::read(&key(), METHOD, &headers), Err(AdmitCall::WrongKey));
        for (name, value) in [(NONCE, "zz"), (PROOF, "00"), (TIME, "soon")] {
            let mut broken = headers.clone();
            broken.insert(name.clone(), HeaderValue::from_static(value));
            assert_eq!(Call::read(&key(), METHOD, &broken), Err(AdmitCall::NoProof));
            broken.remove(name);
            assert_eq!(Call::read(&key(), METHOD, &broken), Err(AdmitCall::NoProof));
        }
    }

    #[test]
    fn an_answer_proves_the_key_and_a_clients_proof_does_not_serve_as_one() {
        let call = Call::new(METHOD, NOW, [9; KEY_BYTES]);
        let mut headers = HeaderMap::new();
        assert!(!call.is_answered(&key(), &headers));
        call.write(&key(), &mut headers);
        assert!(!call.is_answered(&key(), &headers), "what the client sent, sent back");
        call.write_answer(&key(), &mut headers);
        assert!(call.is_answered(&key(), &headers));
        assert!(!call.is_answered(&Key::new([4; 32]), &headers));
        assert!(!Call::new(METHOD, NOW, [8; KEY_BYTES]).is_answered(&key(), &headers));
    }

    #[test]
    fn a_call_is_admitted_once_and_near_its_time() {
        let mut seen = Seen::default();
        let call = Call::new(METHOD, NOW, [9; KEY_BYTES]);
        assert_eq!(seen.admit(&call, NOW + 1000), Ok(()));
        assert_eq!(seen.admit(&call, NOW + 2000), Err(AdmitCall::PlayedBack));
        assert_eq!(seen.admit(&Call::new(METHOD, NOW, [8; KEY_BYTES]), NOW), Ok(()));
        let off = AdmitCall::OffTime { seconds: 301 };
        assert_eq!(seen.admit(&Call::new(METHOD, NOW - 301_000, [7; KEY_BYTES]), NOW), Err(off));
        assert_eq!(seen.admit(&Call::new(METHOD, NOW + 301_000, [7; KEY_BYTES]), NOW), Err(off));
        assert_eq!(seen.admit(&call, NOW + 301_000), Err(off), "forgotten, but too old");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_forgotten_refused() {
        let mut seen = Seen::default();
        let call = |number: u64| {
            let mut nonce = [0; KEY_BYTES];
            nonce[..8].copy_from_slice(&number.to_le_bytes());
            Call::new(METHOD, NOW + number, nonce)
        };
        for number in 0..MAX_SEEN as u64 + 10 {
            assert_eq!(seen.admit(&call(number), NOW + number), Ok(()));
        }
        assert_eq!(seen.calls.len(), MAX_SEEN);
        let end = NOW + MAX_SEEN as u64 + 10;
        assert_eq!(seen.admit(&call(3), end), Err(AdmitCall::PlayedBack));
    }
}
