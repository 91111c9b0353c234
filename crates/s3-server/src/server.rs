//! How is a server started, watched, changed and stopped?

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::host::{S3Host, VirtualHost};
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin;
use crate::auth::{Access, Credentials, Keyring};
use crate::backend::Objects;
use crate::config::{BucketConfig, Config, TlsConfig};
use crate::counters::{Counters, Snapshot};
use crate::faults::active::Active;
use crate::faults::plan::FaultPlan;
use crate::listener::Listener;
use crate::outage::{Outage, OutageMode};
use crate::protocol::{Bucket, Protocol};
use crate::region::Redirect;
use crate::service::Service;
use crate::sts::StsConfig;
use crate::target::virtual_bucket;
use crate::tls::{Authority, TlsError};
use crate::units::InvalidValue;

/// How long answers in flight may take to end when the server stops.
const GRACE: Duration = Duration::from_secs(2);

/// What kept the server from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address could not be bound.
    #[error("listen on {address}: choose another address or port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A bucket's folder is not there, or is no folder.
    #[error("serve folder {path:?} as bucket {bucket:?}: it must be a folder that can be read")]
    Folder {
        /// The bucket.
        bucket: String,
        /// Its folder.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A value of the configuration makes no sense.
    #[error("the server's configuration is not valid")]
    Config(#[from] InvalidValue),
    /// The certificate could not be made.
    #[error("the server's certificate could not be made")]
    Tls(#[from] TlsError),
}

/// A running server. Dropping it stops it at once.
pub struct S3Server {
    service: Arc<Service>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    ca_pem: Option<String>,
    stop: CancellationToken,
    abort: CancellationToken,
    tasks: TaskTracker,
}

impl std::fmt::Debug for S3Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Server").field("endpoint", &self.endpoint()).finish_non_exhaustive()
    }
}

impl S3Server {
    /// A builder with the default configuration: no buckets, loopback, a port from the kernel, everyone let in.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a server on the current tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong and what to change.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let Config { listen, admin, buckets, access, sts, tls, faults, redirect, domains, .. } = config;
        let buckets = Arc::new(open_buckets(buckets)?);
        let authority =
            tls.map(|tls| Authority::new(certificate_names(tls, &domains, &buckets))).transpose()?;
        let keyring = match access {
            Access::Anyone => None,
            Access::Signed { credentials, anonymous } => Some(Keyring::new(credentials, anonymous)),
        };
        let mut s3 = S3ServiceBuilder::new(Protocol { buckets: buckets.clone() });
        s3.set_host(Domains(domains.clone()));
        s3.set_config(Arc::new(StaticConfigProvider::new(Arc::new(any_time()))));
        if let Some(keyring) = &keyring {
            s3.set_auth(keyring.clone());
            s3.set_access(keyring.clone());
        }
        let service = Arc::new(Service {
            s3: s3.build(),
            buckets,
            keyring,
            sts,
            domains,
            redirect,
            clock_offset: jiff::SignedDuration::from_secs(config.clock_offset_seconds.into()),
            faults: RwLock::new(Arc::new(Active::new(faults, Instant::now())?)),
            outage: Outage::none(),
            counters: Counters::new(config.tracked_keys),
        });
        let (socket, address) = bind(listen).await?;
        let (stop, abort, tasks) = (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        let ca_pem = authority.as_ref().map(|authority| authority.ca_pem.clone());
        let mut admin_address = None;
        if let Some(admin) = admin {
            let (socket, address) = bind(admin).await?;
            admin_address = Some(address);
            tasks.spawn(admin::serve(socket, service.clone(), ca_pem.clone(), stop.clone()));
        }
        let listener = Listener {
            address,
            service: service.clone(),
            tls: authority.map(|authority| TlsAcceptor::from(authority.server)),
            stop: stop.clone(),
            abort: abort.clone(),
            tasks: tasks.clone(),
        };
        tasks.spawn(listener.run(socket));
        Ok(Self { service, address, admin_address, ca_pem, stop, abort, tasks })
    }

    /// URL of the S3 side, with the address.
    pub fn endpoint(&self) -> String {
        let scheme = if self.ca_pem.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Address of the S3 side.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of the admin side, if there is one.
    pub fn admin_url(&self) -> Option<String> {
        self.admin_address.map(|address| format!("http://{address}"))
    }

    /// Certificate of the authority that clients must trust, if the server answers over TLS.
    pub fn ca_pem(&self) -> Option<&str> {
        self.ca_pem.as_deref()
    }

    /// The counters now.
    pub fn counters(&self) -> Snapshot {
        self.service.snapshot()
    }

    /// Sets the counters to nothing.
    pub fn reset_counters(&self) {
        self.service.counters.reset();
    }

    /// Puts a plan in force for requests from now on; counts and limits of its rules begin anew.
    ///
    /// # Errors
    /// Names the field, the value and the cure; the old plan stays in force.
    pub fn set_faults(&self, plan: FaultPlan) -> Result<(), InvalidValue> {
        self.service.set_faults(plan)
    }

    /// Ends all faults of the plan.
    pub fn clear_faults(&self) {
        // A plan without rules and rates is always valid.
        let _ = self.service.set_faults(FaultPlan::default());
    }

    /// Puts the server out of service for a time; ends an outage that is on.
    pub fn begin_outage(&self, mode: OutageMode, length: Duration) {
        self.service.outage.begin(mode, length);
    }

    /// Ends an outage before its time.
    pub fn end_outage(&self) {
        self.service.outage.end();
    }

    /// Accepts credentials (more); has no effect when everyone is let in.
    pub fn add_credentials(&self, credentials: Credentials) {
        if let Some(keyring) = &self.service.keyring {
            keyring.add(credentials);
        }
    }

    /// No longer knows credentials; false when it did not.
    pub fn remove_credentials(&self, access_key: &str) -> bool {
        self.service.keyring.as_ref().is_some_and(|keyring| keyring.remove(access_key))
    }

    /// Lets credentials expire now; false when they are not known.
    pub fn expire_credentials(&self, access_key: &str) -> bool {
        self.service.keyring.as_ref().is_some_and(|keyring| keyring.expire(access_key))
    }

    /// Stops: no new connections, answers in flight may end within two seconds.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(GRACE, self.tasks.wait()).await.is_err() {
            self.abort.cancel();
            self.tasks.wait().await;
        }
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.stop.cancel();
        self.abort.cancel();
    }
}

impl Service {
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot { faults: self.faults.read().applied(), ..self.counters.snapshot() }
    }

    pub(crate) fn set_faults(&self, plan: FaultPlan) -> Result<(), InvalidValue> {
        let active = Arc::new(Active::new(plan, Instant::now())?);
        *self.faults.write() = active;
        Ok(())
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let bound = async {
        let socket = TcpListener::bind(address).await?;
        let address = socket.local_addr()?;
        Ok((socket, address))
    };
    bound.await.map_err(|source| StartError::Listen { address, source })
}

fn open_buckets(configs: Vec<BucketConfig>) -> Result<BTreeMap<String, Bucket>, StartError> {
    let mut buckets = BTreeMap::new();
    for BucketConfig { name, objects, region, requester_pays } in configs {
        if !s3s::path::check_bucket_name(&name) {
            return Err(InvalidValue::new(
                "bucket",
                &name,
                "use 3 to 63 lower-case letters, digits, dots and hyphens",
            )
            .into());
        }
        match &objects {
            Objects::Folder(path) => {
                std::fs::read_dir(path).map_err(|source| StartError::Folder {
                    bucket: name.clone(),
                    path: path.clone(),
                    source,
                })?;
            }
            Objects::Synthetic(spec) => spec.validate()?,
            Objects::InMemory(_) => {}
        }
        let bucket = Bucket { backend: objects.open(), region, requester_pays };
        if buckets.insert(name.clone(), bucket).is_some() {
            return Err(InvalidValue::new("bucket", &name, "give each bucket a name of its own").into());
        }
    }
    Ok(buckets)
}

/// Buckets by name too: clients refuse a wildcard right under a top-level name such as `localhost`.
fn certificate_names(tls: TlsConfig, domains: &[String], buckets: &BTreeMap<String, Bucket>) -> Vec<String> {
    let mut names = vec!["127.0.0.1".to_owned(), "::1".to_owned()];
    for domain in domains {
        names.extend([domain.clone(), format!("*.{domain}")]);
        names.extend(buckets.keys().map(|bucket| format!("{bucket}.{domain}")));
    }
    names.extend(tls.names);
    names
}

/// s3s compares with the machine's clock; ours may be told to be wrong, so `service` compares.
fn any_time() -> S3Config {
    let mut config = S3Config::default();
    config.presigned_url_max_skew_time_secs = u32::MAX;
    config
}

/// Tells s3s about virtual-hosted buckets.
struct Domains(Vec<String>);

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> s3s::S3Result<VirtualHost<'a>> {
        let parsed = VirtualHost::new(host);
        Ok(match virtual_bucket(host, &self.0) {
            Some(bucket) => parsed.with_bucket(bucket),
            None => parsed,
        })
    }
}

/// Collects a configuration step by step.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    config: Config,
}

impl Builder {
    /// One bucket more, in any region.
    pub fn bucket(self, name: impl Into<String>, objects: impl Into<Objects>) -> Self {
        self.bucket_config(BucketConfig::new(name, objects))
    }

    /// One bucket more.
    pub fn bucket_config(mut self, bucket: BucketConfig) -> Self {
        self.config.buckets.push(bucket);
        self
    }

    /// The address of the S3 side.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.config.listen = address;
        self
    }

    /// An admin side on 127.0.0.1 and a port from the kernel.
    pub fn admin(mut self) -> Self {
        self.config.admin = Some((std::net::Ipv4Addr::LOCALHOST, 0).into());
        self
    }

    /// Who is let in.
    pub fn access(mut self, access: Access) -> Self {
        self.config.access = access;
        self
    }

    /// An STS side.
    pub fn sts(mut self, sts: StsConfig) -> Self {
        self.config.sts = Some(sts);
        self
    }

    /// TLS with an authority of its own.
    pub fn tls(mut self) -> Self {
        self.config.tls = Some(TlsConfig::default());
        self
    }

    /// Faults from the start on.
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.config.faults = plan;
        self
    }

    /// How requests signed for another region are answered.
    pub fn redirect(mut self, redirect: Redirect) -> Self {
        self.config.redirect = redirect;
        self
    }

    /// A clock that is wrong by so many seconds.
    pub fn clock_offset_seconds(mut self, seconds: i32) -> Self {
        self.config.clock_offset_seconds = seconds;
        self
    }

    /// The configuration so far, to change what has no method here.
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    /// As [`S3Server::start`].
    pub async fn start(self) -> Result<S3Server, StartError> {
        S3Server::start(self.config).await
    }
}
