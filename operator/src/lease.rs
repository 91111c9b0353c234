//! Which of several operators writes? The one that holds the lease.
//!
//! As in client-go: a lease is another's as long as we have seen it change within its duration by our own clock, so that clocks
//! need not agree. It is taken and renewed by PUT with the resource version that was read, so that of two takers one wins.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use millrace_api::names;
use tokio::sync::watch;
use tokio::time::Instant;

/// For how long a lease holds after its last renewal. A fail-over takes this and one look more: under 15 s.
pub const DURATION: Duration = Duration::from_secs(10);

/// How often it is renewed, or looked at by those who wait for it.
pub const RENEW_EVERY: Duration = Duration::from_secs(2);

/// Nothing is written this long before the lease ends: a request that is under way has that long to be carried out.
const MARGIN: Duration = Duration::from_secs(3);

/// For one request.
const DEADLINE: Duration = Duration::from_secs(3);

/// Whether we hold the lease, for those who write. Clones share it.
#[derive(Debug, Clone)]
pub struct Held {
    until: Arc<watch::Sender<Option<Instant>>>,
}

impl Default for Held {
    fn default() -> Self {
        Self { until: Arc::new(watch::Sender::new(None)) }
    }
}

impl Held {
    /// Whether something may be written now.
    pub fn is_held(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Waits until something may be written.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn taken(&self) {
        let mut renewals = self.until.subscribe();
        while !self.is_held() {
            // The sender is ours: it is there.
            let _ = renewals.changed().await;
        }
    }

    /// Held for ever, where there is nobody else.
    pub fn always() -> Self {
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        Self { until: Arc::new(watch::Sender::new(Some(Instant::now() + century))) }
    }

    fn set(&self, renewed: Option<Instant>) {
        self.until.send_replace(renewed.map(|at| at + DURATION - MARGIN));
    }
}

/// A lease, and what we know of it.
#[derive(Debug)]
pub struct Keeper {
    api: Api<Lease>,
    name: String,
    holder: String,
    held: Held,
    /// What we saw last, and when it was first seen so.
    seen: Option<(Option<String>, Instant)>,
}

/// Why a look at the lease told nothing.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The API server refused.
    #[error("{step} lease {name:?}")]
    Ask {
        /// What was tried.
        step: &'static str,
        /// Which.
        name: String,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// It did not answer in time.
    #[error("no answer about lease {name:?} within {DEADLINE:?}")]
    Late {
        /// Which.
        name: String,
    },
}

impl Keeper {
    /// A lease that nobody has asked for yet. `holder` is unique among the operators and their starts.
    pub fn new(api: Api<Lease>, name: String, holder: String, held: Held) -> Self {
        Self { api, name, holder, held, seen: None }
    }

    /// Takes or renews the lease where that is possible, and says whether it is ours.
    ///
    /// # Errors
    /// Where the API server does not say. A lease that was ours stays so until its end.
    pub async fn look(&mut self) -> Result<bool, LeaseError> {
        let name = self.name.clone();
        match tokio::time::timeout(DEADLINE, self.try_look()).await {
            Ok(result) => result,
            Err(_) => Err(LeaseError::Late { name }),
        }
    }

    async fn try_look(&mut self) -> Result<bool, LeaseError> {
        let name = self.name.clone();
        let error = |step: &'static str| {
            let name = name.clone();
            move |source: kube::Error| LeaseError::Ask { step, name, source: Box::new(source) }
        };
        // From before the request: the lease holds from the time that the API server writes, which is later.
        let began = Instant::now();
        let Some(lease) = self.api.get_opt(&self.name).await.map_err(error("read"))? else {
            let created = self.api.create(&PostParams::default(), &self.lease(None)).await;
            return self.taken(created.map(drop), began, error("create"));
        };
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let version = lease.metadata.resource_version.clone();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version, began));
        }
        let is_silent = self.seen.as_ref().is_none_or(|(_, since)| since.elapsed() > DURATION);
        if holder != self.holder && !holder.is_empty() && !is_silent {
            self.held.set(None);
            return Ok(false);
        }
        let replaced = self.api.replace(&self.name, &PostParams::default(), &self.lease(Some(&lease))).await;
        self.taken(replaced.map(drop), began, error("write"))
    }

    fn taken(
        &mut self,
        result: Result<(), kube::Error>,
        began: Instant,
        error: impl FnOnce(kube::Error) -> LeaseError,
    ) -> Result<bool, LeaseError> {
        match result {
            Ok(()) => {
                self.held.set(Some(began));
                Ok(true)
            }
            // Somebody else was faster; the next look sees whom.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.held.set(None);
                Ok(false)
            }
            Err(source) => Err(error(source)),
        }
    }

    /// Gives the lease back, so that a successor need not wait for its end.
    pub async fn release(&mut self) {
        if !self.held.is_held() {
            return;
        }
        self.held.set(None);
        let release = async {
            let mut lease = self.api.get(&self.name).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(self.holder.as_str()) {
                spec.holder_identity = Some(String::new());
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<(), kube::Error>(())
        };
        match tokio::time::timeout(DEADLINE, release).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = %error, "lease not given back: it ends by itself"),
            Err(_) => tracing::warn!("lease not given back in time: it ends by itself"),
        }
    }

    fn lease(&self, old: Option<&Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let old_spec = old.and_then(|lease| lease.spec.as_ref());
        let is_ours = old_spec.and_then(|spec| spec.holder_identity.as_deref()) == Some(self.holder.as_str());
        let transitions = old_spec.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        let acquired = old_spec.and_then(|spec| spec.acquire_time.clone()).filter(|_| is_ours);
        let metadata = old.map_or_else(
            || ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some([(names::MANAGED_BY_LABEL.to_owned(), names::MANAGER.to_owned())].into()),
                ..ObjectMeta::default()
            },
            |lease| lease.metadata.clone(),
        );
        let spec = LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: Some(DURATION.as_secs() as i32),
            acquire_time: acquired.or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(if is_ours || old.is_none() { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        };
        Lease { metadata, spec: Some(spec) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_held_until_shortly_before_its_end() {
        let held = Held::default();
        assert!(!held.is_held());
        held.set(Some(Instant::now()));
        assert!(held.is_held());
        held.set(Some(Instant::now() - (DURATION - MARGIN)));
        assert!(!held.is_held());
        assert!(Held::always().is_held());
    }

    #[tokio::test]
    async fn who_waits_for_the_lease_is_woken_when_it_is_taken() {
        let held = Held::default();
        let waits = tokio::spawn({
            let held = held.clone();
            async move { held.taken().await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        held.set(Some(Instant::now()));
        waits.await.unwrap();
    }
}
