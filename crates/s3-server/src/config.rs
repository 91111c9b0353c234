//! What is the server told at start?

use std::net::{Ipv4Addr, SocketAddr};

use crate::auth::Access;
use crate::backend::Objects;
use crate::faults::plan::FaultPlan;
use crate::region::Redirect;
use crate::sts::StsConfig;

/// Where the server listens, what it serves and how it behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the S3 side, and of STS; 127.0.0.1 and a port from the kernel by default.
    pub listen: SocketAddr,
    /// Address of the admin side (counters, faults, outages); none by default. It has no access control.
    pub admin: Option<SocketAddr>,
    /// The buckets, with names of their own.
    pub buckets: Vec<BucketConfig>,
    /// Who is let in.
    pub access: Access,
    /// Hands out temporary credentials for web identity tokens at the same address, when present.
    pub sts: Option<StsConfig>,
    /// Answers over TLS only, with a certificate of an authority that is made at start, when present.
    pub tls: Option<TlsConfig>,
    /// Faults from the start on.
    pub faults: FaultPlan,
    /// How requests signed for another region than the bucket's are answered.
    pub redirect: Redirect,
    /// Domains under which buckets are host names: `bucket.localhost`.
    pub domains: Vec<String>,
    /// How many seconds the server's clock is ahead; negative for behind.
    pub clock_offset_seconds: i32,
    /// How many keys GET bytes are counted for one by one.
    pub tracked_keys: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            admin: None,
            buckets: Vec::new(),
            access: Access::Anyone,
            sts: None,
            tls: None,
            faults: FaultPlan::default(),
            redirect: Redirect::Permanent,
            domains: vec!["localhost".to_owned()],
            clock_offset_seconds: 0,
            // About 20 MB of counters at most.
            tracked_keys: 100_000,
        }
    }
}

/// One bucket.
#[derive(Debug, Clone)]
pub struct BucketConfig {
    /// Name, as S3 allows it.
    pub name: String,
    /// Where its objects come from.
    pub objects: Objects,
    /// Requests signed for another region are redirected; without one, requests signed for any region are served.
    pub region: Option<String>,
    /// Whether requests must say that the requester pays.
    pub requester_pays: bool,
}

/// The region that a bucket without one reports.
pub(crate) const DEFAULT_REGION: &str = "us-east-1";

impl BucketConfig {
    /// A bucket that is in any region.
    pub fn new(name: impl Into<String>, objects: impl Into<Objects>) -> Self {
        Self { name: name.into(), objects: objects.into(), region: None, requester_pays: false }
    }

    /// The same in one region.
    pub fn in_region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// The same, where the requester pays.
    pub fn requester_pays(mut self) -> Self {
        self.requester_pays = true;
        self
    }
}

/// TLS with an authority of the server's own.
#[derive(Debug, Clone, Default)]
pub struct TlsConfig {
    /// Host names and addresses in the certificate beside 127.0.0.1, ::1, the domains and the names under them.
    pub names: Vec<String>,
}
