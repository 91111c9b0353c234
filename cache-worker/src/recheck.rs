//! When is an origin in trouble asked again though nobody reads from it?
//!
//! What a worker says of its origins comes from the requests that reads make. After a user has cured what failed there may be
//! none for hours, so the request that failed last is repeated: 30 s after trouble began, then ever more rarely, and at
//! once when the files of the credentials change. When trouble is over, objects that could not be read for the same reason are
//! no longer taken for failed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::origin::Origin;
use crate::sources::Sources;

/// How often it is looked whether an origin is due: a change of credentials shows this soon. Of origins that are not in
/// trouble that is a look at a few bytes of memory, of others at the times of some files.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// From the beginning of trouble to the first request; reads that wait make theirs every two seconds meanwhile.
const FIRST_AFTER: Duration = Duration::from_secs(30);

/// The longest time between two.
const LONGEST: Duration = Duration::from_secs(300);

/// When one origin is asked next.
#[derive(Debug)]
struct Due {
    origin: Arc<Origin>,
    at: Instant,
    pause: Duration,
    credentials: u64,
    /// Why it failed, when that was last looked at.
    reason: &'static str,
}

impl Due {
    fn new(origin: Arc<Origin>, credentials: u64, now: Instant) -> Self {
        Self { origin, at: now + FIRST_AFTER, pause: FIRST_AFTER, credentials, reason: "" }
    }

    /// Whether it still fails; notes why.
    fn is_in_trouble(&mut self) -> bool {
        let trouble = self.origin.trouble();
        self.reason = trouble.as_ref().map_or(self.reason, |trouble| trouble.why.kind().name());
        trouble.is_some()
    }

    /// Whether it is time, by the clock or because the credentials are others; then the next time is set.
    fn is_now(&mut self, credentials: u64, now: Instant) -> bool {
        if credentials != self.credentials {
            (self.credentials, self.pause, self.at) = (credentials, FIRST_AFTER, now + FIRST_AFTER);
            return true;
        }
        if now < self.at {
            return false;
        }
        self.pause = (2 * self.pause).min(LONGEST);
        self.at = now + self.pause;
        true
    }
}

/// Looks after the origins of `sources` for ever; `is_over` is told of each reason that is no more.
///
/// # Cancel safety
/// Safe: a request that was under way is repeated by whoever begins anew.
pub async fn recheck(sources: Arc<Sources>, is_over: impl Fn(&'static str)) {
    // At most one for each source in use or set up.
    let mut dues: Vec<Due> = Vec::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        dues.retain_mut(|due| {
            let is_in_trouble = due.is_in_trouble();
            if !is_in_trouble {
                is_over(due.reason);
            }
            is_in_trouble
        });
        for origin in sources.troubled() {
            let (now, credentials) = (Instant::now(), origin.look_at_credentials());
            match dues.iter_mut().find(|due| Arc::ptr_eq(&origin, &due.origin)) {
                None => {
                    let mut due = Due::new(origin, credentials, now);
                    due.is_in_trouble();
                    dues.push(due);
                }
                Some(due) => {
                    if due.is_now(credentials, now) {
                        origin.look_again().await;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_s3_server::backend::memory::InMemory;
    use millrace_s3_server::faults::plan::FaultPlan;
    use millrace_s3_server::faults::rule::{Fault, Rule};
    use millrace_s3_server::server::S3Server;
    use millrace_s3_server::target::Operation;

    use super::*;
    use crate::origin::ObjectVersion;
    use crate::origin::window::Priority;
    use crate::sources::{Access, SourceConfig};

    async fn sources(server: &S3Server) -> (Sources, Arc<Origin>) {
        let sources = Sources::new(Access { credentials_dir: None, profile: None });
        let config = SourceConfig {
            endpoint: server.endpoint(),
            bucket: "data".to_owned(),
            anonymous: true,
            ..SourceConfig::default()
        };
        let prepared = sources.prepare(vec![config]).unwrap();
        let origin = Arc::clone(&prepared[0].1);
        sources.set(prepared);
        (sources, origin)
    }

    #[tokio::test]
    async fn trouble_ends_when_the_request_that_failed_is_answered_and_not_before() {
        let objects = InMemory::new().with("a", "hello");
        let denied = Fault::Error { status: 403, code: "AccessDenied".into(), message: String::new() };
        let plan = FaultPlan::default().rule(Rule::from(denied).operation(Operation::GetObject));
        let server = S3Server::builder().bucket("data", &objects).faults(plan).start().await.unwrap();
        let (sources, origin) = sources(&server).await;
        let object = ObjectVersion { key: "a".into(), etag: objects.etag("a").unwrap(), size: 5 };
        let deadline = Instant::now() + Duration::from_secs(20);
        let read = origin.get(object, 0..5, Priority::Foreground, deadline).next().await;
        assert_eq!(read.unwrap_err().kind().name(), "AccessDenied");
        origin.look_again().await;
        assert!(sources.trouble().is_some(), "it may still not be read, though it may be listed");
        assert_eq!(sources.troubled().len(), 1, "in use and set up, but one origin");
        server.set_faults(FaultPlan::default()).unwrap();
        origin.look_again().await;
        assert!(sources.trouble().is_none() && sources.troubled().is_empty());
        let before = server.counters().requests_of(Operation::GetObject);
        origin.look_again().await;
        assert_eq!(server.counters().requests_of(Operation::GetObject), before, "nothing is wrong");
        server.shutdown().await;
    }

    #[tokio::test]
    async fn it_is_asked_ever_more_rarely_and_at_once_with_other_credentials() {
        let server = S3Server::builder().bucket("data", InMemory::new()).start().await.unwrap();
        let (_, origin) = sources(&server).await;
        let start = Instant::now();
        let mut due = Due::new(origin, 1, start);
        let seconds: Vec<u64> =
            (0..1500).filter(|second| due.is_now(1, start + Duration::from_secs(*second))).collect();
        assert_eq!(seconds, [30, 90, 210, 450, 750, 1050, 1350]);
        assert!(due.is_now(2, start + Duration::from_secs(1500)));
        assert!(!due.is_now(2, start + Duration::from_secs(1501)));
        assert!(due.is_now(2, start + Duration::from_secs(1530)));
        server.shutdown().await;
    }
}
