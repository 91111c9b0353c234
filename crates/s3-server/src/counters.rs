//! What has the server been asked for, and what has it sent?

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::target::{Operation, Target};

/// Error codes counted by name; S3 has about a hundred, the rest of a fault plan's inventions go under `Other`.
const MAX_ERROR_CODES: usize = 256;

/// The counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Requests by operation, also those that failed.
    pub requests: BTreeMap<String, u64>,
    /// Bytes of the bodies of GetObject handed to connections.
    pub body_bytes: u64,
    /// Bytes of all other bodies: listings, errors.
    pub other_bytes: u64,
    /// Error answers by S3 error code.
    pub errors: BTreeMap<String, u64>,
    /// Answers 503 SlowDown.
    pub throttles: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Requests whose answers have not ended.
    pub in_flight: u64,
    /// The most requests in flight at one time.
    pub max_in_flight: u64,
    /// Bytes of GetObject by `bucket/key`, for as many keys as the configuration says.
    pub get_bytes: BTreeMap<String, u64>,
    /// Bytes of GetObject for keys beyond that number.
    pub untracked_get_bytes: u64,
    /// How often each rule of the fault plan in force has been applied, in the plan's order.
    pub faults: Vec<u64>,
}

impl Snapshot {
    /// Requests of one operation.
    pub fn requests_of(&self, operation: Operation) -> u64 {
        self.requests.get(operation.name()).copied().unwrap_or(0)
    }
}

/// The counters themselves.
#[derive(Default)]
pub(crate) struct Counters {
    requests: [AtomicU64; Operation::ALL.len()],
    body_bytes: AtomicU64,
    other_bytes: AtomicU64,
    throttles: AtomicU64,
    connections: AtomicU64,
    in_flight: AtomicU64,
    max_in_flight: AtomicU64,
    errors: Mutex<BTreeMap<String, u64>>,
    tracked_keys: usize,
    get_bytes: Mutex<HashMap<String, Arc<AtomicU64>>>,
    untracked: Arc<AtomicU64>,
}

impl Counters {
    /// Counts GET bytes of single keys for as many keys.
    pub fn new(tracked_keys: usize) -> Arc<Self> {
        Arc::new(Self { tracked_keys, ..Self::default() })
    }

    pub fn connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request, until what is returned is dropped with the end of the answer.
    pub fn begin(self: &Arc<Self>, target: &Target) -> Flight {
        if let Some(count) = Operation::ALL
            .iter()
            .position(|one| *one == target.operation)
            .and_then(|at| self.requests.get(at))
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_in_flight.fetch_max(now, Ordering::Relaxed);
        Flight { counters: self.clone(), key: None, is_get: false }
    }

    pub fn error(&self, code: &str) {
        if code == "SlowDown" {
            self.throttles.fetch_add(1, Ordering::Relaxed);
        }
        let mut errors = self.errors.lock();
        let code = if errors.len() < MAX_ERROR_CODES || errors.contains_key(code) { code } else { "Other" };
        *errors.entry(code.to_owned()).or_default() += 1;
    }

    pub fn snapshot(&self) -> Snapshot {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let requests = Operation::ALL
            .iter()
            .zip(&self.requests)
            .map(|(operation, count)| (operation.name().to_owned(), load(count)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let get_bytes = self.get_bytes.lock().iter().map(|(key, count)| (key.clone(), load(count))).collect();
        Snapshot {
            requests,
            body_bytes: load(&self.body_bytes),
            other_bytes: load(&self.other_bytes),
            errors: self.errors.lock().clone(),
            throttles: load(&self.throttles),
            connections: load(&self.connections),
            in_flight: load(&self.in_flight),
            max_in_flight: load(&self.max_in_flight),
            get_bytes,
            untracked_get_bytes: load(&self.untracked),
            faults: Vec::new(),
        }
    }

    /// Sets everything to nothing, but for the requests in flight.
    pub fn reset(&self) {
        let counts =
            [&self.body_bytes, &self.other_bytes, &self.throttles, &self.connections, &*self.untracked];
        for count in self.requests.iter().chain(counts) {
            count.store(0, Ordering::Relaxed);
        }
        self.max_in_flight.store(self.in_flight.load(Ordering::Relaxed), Ordering::Relaxed);
        self.errors.lock().clear();
        self.get_bytes.lock().clear();
    }

    fn of_key(&self, target: &Target) -> Option<Arc<AtomicU64>> {
        let (bucket, key) = (target.bucket.as_ref()?, target.key.as_ref()?);
        let name = format!("{bucket}/{}", String::from_utf8_lossy(key));
        let mut get_bytes = self.get_bytes.lock();
        if get_bytes.len() >= self.tracked_keys && !get_bytes.contains_key(&name) {
            return Some(self.untracked.clone());
        }
        Some(get_bytes.entry(name).or_default().clone())
    }
}

/// One request between its arrival and the end of its answer.
pub(crate) struct Flight {
    counters: Arc<Counters>,
    key: Option<Arc<AtomicU64>>,
    is_get: bool,
}

impl Flight {
    /// From now on bytes are those of an object.
    pub fn content(&mut self, target: &Target) {
        self.is_get = true;
        if self.counters.tracked_keys > 0 {
            self.key = self.counters.of_key(target);
        }
    }

    pub fn sent(&self, bytes: usize) {
        let total = if self.is_get { &self.counters.body_bytes } else { &self.counters.other_bytes };
        total.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(key) = &self.key {
            key.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(key: &str) -> Target {
        Target { operation: Operation::GetObject, bucket: Some("b".to_owned()), key: Some(key.into()) }
    }

    #[test]
    fn bytes_of_keys_beyond_the_bound_are_counted_together() {
        let counters = Counters::new(2);
        for key in ["1", "2", "3", "4", "1"] {
            let mut flight = counters.begin(&get(key));
            flight.content(&get(key));
            flight.sent(10);
        }
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.get_bytes, BTreeMap::from([("b/1".to_owned(), 20), ("b/2".to_owned(), 10)]));
        assert_eq!((snapshot.untracked_get_bytes, snapshot.body_bytes), (20, 50));
        assert_eq!((snapshot.in_flight, snapshot.max_in_flight), (0, 1));
        assert_eq!(snapshot.requests_of(Operation::GetObject), 5);
    }

    #[test]
    fn invented_error_codes_are_bounded() {
        let counters = Counters::new(0);
        (0..1000).for_each(|number| counters.error(&number.to_string()));
        let errors = counters.snapshot().errors;
        assert_eq!(errors.len(), MAX_ERROR_CODES + 1);
        assert_eq!(errors.values().sum::<u64>(), 1000);
        counters.reset();
        assert_eq!(counters.snapshot(), Snapshot::default());
    }
}
