//! Is this process ready, and if not, what is it waiting for?

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The named conditions of a process that must all be met before it is ready.
///
/// Clones share the same conditions. A process without conditions is ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    /// By name; `Some` holds why the condition is not met.
    waiting: Arc<Mutex<BTreeMap<&'static str, Option<String>>>>,
}

/// One condition of a [`Readiness`]; whoever holds it reports on it.
#[derive(Clone, Debug)]
pub struct Condition {
    name: &'static str,
    of: Readiness,
}

/// A condition that is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// The condition's name.
    pub name: &'static str,
    /// Why it is not met.
    pub reason: String,
}

impl Readiness {
    /// Returns readiness without conditions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition, not met for `reason` until its holder says otherwise. A name given twice is the same condition.
    pub fn condition(&self, name: &'static str, reason: impl Into<String>) -> Condition {
        self.waiting.lock().insert(name, Some(reason.into()));
        Condition { name, of: self.clone() }
    }

    /// Lists the conditions that are not met, sorted by name. Empty: the process is ready.
    pub fn unmet(&self) -> Vec<Unmet> {
        let waiting = self.waiting.lock();
        waiting
            .iter()
            .filter_map(|(name, reason)| reason.clone().map(|reason| Unmet { name, reason }))
            .collect()
    }
}

impl Condition {
    /// Says that the condition is met.
    pub fn met(&self) {
        self.of.waiting.lock().insert(self.name, None);
    }

    /// Says that the condition is not met, and why.
    pub fn unmet(&self, reason: impl Into<String>) {
        self.of.waiting.lock().insert(self.name, Some(reason.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_condition_is_met_and_again_when_one_is_lost() {
        let readiness = Readiness::new();
        assert!(readiness.unmet().is_empty());
        let index = readiness.condition("index", "not listed yet");
        let store = readiness.condition("store", "recovering");
        assert_eq!(readiness.unmet().len(), 2);
        index.met();
        assert_eq!(readiness.unmet(), vec![Unmet { name: "store", reason: "recovering".into() }]);
        store.met();
        assert!(readiness.unmet().is_empty());
        index.unmet("bucket gone");
        assert_eq!(readiness.unmet(), vec![Unmet { name: "index", reason: "bucket gone".into() }]);
    }
}
