//! Which S3 client serves a source now, and when must it be another?

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Config, IdentityCache, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedAsyncSleep, StalledStreamProtectionConfig,
};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;
use tracing::{info, warn};

use super::config::{Addressing, CredentialsConfig, DEFAULT_REGION, OriginConfig};
use super::credentials::Keys;
use super::error::Target;
use super::folder::{self, ReadFolder};
use super::tls::{BadCa, Trust, http_client};

/// A folder's `ca.crt` is looked at this often.
const LOOK_AT_CA_EVERY: Duration = Duration::from_secs(2);

/// Why a source could not be set up.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenOrigin {
    /// The file of authorities cannot be read.
    #[error("set up bucket {bucket:?}: read certificates")]
    ReadCa {
        /// The bucket.
        bucket: String,
        /// Why.
        #[source]
        source: ReadFolder,
    },
    /// The authorities cannot be used.
    #[error("set up bucket {bucket:?}")]
    Ca {
        /// The bucket.
        bucket: String,
        /// Why.
        #[source]
        source: BadCa,
    },
}

/// The clients of one source.
#[derive(Debug)]
pub(super) struct Clients {
    config: OriginConfig,
    keys: Keys,
    now: RwLock<Arc<Now>>,
    looked_at_ca: Mutex<Instant>,
}

/// What requests are made with.
#[derive(Debug)]
pub(super) struct Now {
    pub s3: Client,
    region: String,
    ca: Option<String>,
}

impl Clients {
    /// Makes the first client; sends nothing.
    pub(super) fn new(config: OriginConfig) -> Result<Self, OpenOrigin> {
        let region = config.region.clone().unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let ca = read_ca(&config)
            .map_err(|source| OpenOrigin::ReadCa { bucket: config.bucket.clone(), source })?;
        let keys = Keys::new(&config.credentials, &region, ca.as_deref());
        let now = build(&config, &keys, region, ca)
            .map_err(|source| OpenOrigin::Ca { bucket: config.bucket.clone(), source })?;
        Ok(Self { config, keys, now: RwLock::new(Arc::new(now)), looked_at_ca: Mutex::new(Instant::now()) })
    }

    pub(super) fn config(&self) -> &OriginConfig {
        &self.config
    }

    /// The client for the next request.
    pub(super) fn now(&self) -> Arc<Now> {
        self.look_at_ca();
        self.now.read().clone()
    }

    /// What a message about a request names.
    pub(super) fn target(&self) -> Target {
        Target {
            endpoint: self.config.endpoint_name().into(),
            bucket: self.config.bucket.as_str().into(),
            key_id_tail: self.keys.tail(),
        }
    }

    /// Counts the changes of the credentials that were seen.
    pub(super) fn credentials_generation(&self) -> u64 {
        self.keys.generation()
    }

    /// The same after a look at them.
    pub(super) fn look_at_credentials(&self) -> u64 {
        self.keys.look();
        self.keys.generation()
    }

    /// Goes to the region that the server named; `false` where we are there already.
    pub(super) fn learn_region(&self, region: &str) -> bool {
        let before = self.now.read().clone();
        if before.region == region {
            return false;
        }
        match build(&self.config, &self.keys, region.to_owned(), before.ca.clone()) {
            Ok(now) => {
                info!(
                    bucket = self.config.bucket,
                    from = before.region,
                    to = region,
                    "bucket is in another region"
                );
                *self.now.write() = Arc::new(now);
                true
            }
            Err(_) => false,
        }
    }

    fn look_at_ca(&self) {
        if !matches!(self.config.credentials, CredentialsConfig::Folder(_)) {
            return;
        }
        {
            let mut looked = self.looked_at_ca.lock();
            if looked.elapsed() < LOOK_AT_CA_EVERY {
                return;
            }
            *looked = Instant::now();
        }
        let before = self.now.read().clone();
        // An unreadable file keeps what we have: it may be half written.
        let Ok(ca) = read_ca(&self.config) else { return };
        if ca == before.ca {
            return;
        }
        match build(&self.config, &self.keys, before.region.clone(), ca) {
            Ok(now) => *self.now.write() = Arc::new(now),
            Err(err) => warn!(bucket = self.config.bucket, error = %err, "new certificates not taken up"),
        }
    }
}

fn read_ca(config: &OriginConfig) -> Result<Option<String>, ReadFolder> {
    if let CredentialsConfig::Folder(path) = &config.credentials
        && let Some(pem) = folder::read_ca(path)?
    {
        return Ok(Some(pem));
    }
    let Some(path) = &config.ca else { return Ok(None) };
    let missing =
        || ReadFolder::File { path: PathBuf::from(path), reason: "it does not exist or is empty".to_owned() };
    folder::read_file(path)?.ok_or_else(missing).map(Some)
}

/// The sleep that the SDK's own deadlines use.
pub(super) fn sleep() -> SharedAsyncSleep {
    SharedAsyncSleep::new(aws_smithy_async::rt::sleep::TokioSleep::new())
}

fn build(config: &OriginConfig, keys: &Keys, region: String, ca: Option<String>) -> Result<Now, BadCa> {
    let http = http_client(Trust::for_endpoint(config.endpoint.as_deref(), ca.as_deref()))?;
    let mut builder = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(region.clone()))
        .http_client(http)
        .sleep_impl(sleep())
        .timeout_config(TimeoutConfig::builder().connect_timeout(config.deadlines.connect).build())
        // Retries and stalls are ours: they know the deadline, the window and how many bytes have arrived.
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // S3 has no checksum for most ranges; chunks get theirs as they arrive.
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .disable_s3_express_session_auth(false)
        .force_path_style(config.endpoint.is_some() && config.addressing == Addressing::Path);
    builder.set_endpoint_url(config.endpoint.clone());
    match &keys.provider {
        Some(provider) => builder.set_credentials_provider(Some(provider.clone())),
        None => builder.set_allow_no_auth(),
    };
    if keys.ask_always {
        builder.set_identity_cache(IdentityCache::no_cache());
    }
    Ok(Now { s3: Client::from_conf(builder.build()), region, ca })
}
