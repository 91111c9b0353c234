//! Who are we to S3, at this moment?

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, SharedCredentialsProvider, future};
use aws_sdk_s3::config::{Region, SharedHttpClient};
use parking_lot::Mutex;

use super::config::{CredentialsConfig, WebIdentity};
use super::folder::{self, Held, ReadFolder, Stamp};
use super::tls::{Trust, http_client};

/// A folder is looked at this often; a change is taken up at the next request after it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Credentials of a role are renewed this long before they expire, as the SDK's own cache does.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// A token service that failed is asked again after this long, as long as there are credentials that are still good.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The last four characters of the access key in use, for messages.
pub(super) type Tail = Arc<Mutex<Option<String>>>;

/// The credentials of one source.
#[derive(Debug)]
pub(super) struct Keys {
    /// `None` when requests are not signed.
    pub provider: Option<SharedCredentialsProvider>,
    /// Whether the provider is cheap enough to be asked for each request, which is how changes are seen at once.
    pub ask_always: bool,
    folder: Option<Arc<Folder>>,
    tail: Tail,
}

impl Keys {
    /// Sets the source up; reads nothing yet.
    pub(super) fn new(config: &CredentialsConfig, region: &str, ca: Option<&str>) -> Self {
        let tail = Tail::default();
        let noted = |inner| Some(SharedCredentialsProvider::new(Noted { inner, tail: tail.clone() }));
        let (provider, ask_always, folder) = match config {
            CredentialsConfig::Anonymous => (None, false, None),
            CredentialsConfig::Folder(path) => {
                let folder = Arc::new(Folder::new(path.clone(), region, ca));
                (noted(Source::Folder(folder.clone())), true, Some(folder))
            }
            CredentialsConfig::WebIdentity(identity) => {
                let role = Arc::new(Role::new(identity.clone(), region, ca));
                (noted(Source::Role(role)), true, None)
            }
            CredentialsConfig::Profile(name) => {
                (noted(Source::Profile { name: name.clone(), region: region.to_owned() }), false, None)
            }
            CredentialsConfig::Chain => (noted(Source::Chain { region: region.to_owned() }), false, None),
        };
        Self { provider, ask_always, folder, tail }
    }

    /// Last four characters of the id of the key in use.
    pub(super) fn tail(&self) -> Option<String> {
        self.tail.lock().clone()
    }

    /// Counts the changes of the credentials that were seen.
    pub(super) fn generation(&self) -> u64 {
        self.folder.as_ref().map_or(0, |folder| folder.state.lock().generation)
    }

    /// Looks whether the credentials have changed.
    pub(super) fn look(&self) {
        if let Some(folder) = &self.folder {
            folder.look(true);
        }
    }
}

/// A provider that remembers whose key it gave out.
#[derive(Debug)]
struct Noted {
    inner: Source,
    tail: Tail,
}

#[derive(Debug)]
enum Source {
    Folder(Arc<Folder>),
    Role(Arc<Role>),
    Profile { name: String, region: String },
    Chain { region: String },
}

impl ProvideCredentials for Noted {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async {
            let credentials = match &self.inner {
                Source::Folder(folder) => folder.credentials().await?,
                Source::Role(role) => role.credentials().await?,
                // Made anew at each renewal (once an hour or so): both read their files when they are made.
                Source::Profile { name, region } => {
                    let config = provider_config(region)?;
                    let profile =
                        ProfileFileCredentialsProvider::builder().configure(&config).profile_name(name);
                    profile.build().provide_credentials().await?
                }
                Source::Chain { region } => {
                    let chain = DefaultCredentialsChain::builder().configure(provider_config(region)?);
                    chain.build().await.provide_credentials().await?
                }
            };
            let id = credentials.access_key_id();
            let tail = id.char_indices().rev().nth(3).map_or(id, |(start, _)| &id[start..]);
            let mut noted = self.tail.lock();
            if noted.as_deref() != Some(tail) {
                *noted = Some(tail.to_owned());
            }
            drop(noted);
            Ok(credentials)
        })
    }
}

fn provider_config(region: &str) -> Result<ProviderConfig, CredentialsError> {
    let http = http_client(Trust::System).map_err(CredentialsError::invalid_configuration)?;
    Ok(ProviderConfig::without_region()
        .with_region(Some(Region::new(region.to_owned())))
        .with_http_client(http))
}

/// A folder of credentials and what was last read from it.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    region: String,
    ca: Option<String>,
    state: Mutex<FolderState>,
}

#[derive(Debug)]
struct FolderState {
    looked: Option<Instant>,
    stamp: Stamp,
    generation: u64,
    held: Result<Ready, ReadFolder>,
}

#[derive(Debug, Clone)]
enum Ready {
    Keys(Credentials),
    Role(Arc<Role>),
}

impl Folder {
    fn new(path: PathBuf, region: &str, ca: Option<&str>) -> Self {
        let held = Err(ReadFolder::Missing { folder: path.clone(), name: "files" });
        let state = FolderState { looked: None, stamp: Stamp::default(), generation: 0, held };
        Self { path, region: region.to_owned(), ca: ca.map(str::to_owned), state: Mutex::new(state) }
    }

    /// Reads the folder again if it has changed; looks at most once in [`LOOK_EVERY`] unless told to. A few metadata calls on a tmpfs: some microseconds, so not worth another thread.
    fn look(&self, now: bool) {
        let mut state = self.state.lock();
        if !now && state.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return;
        }
        let is_first = state.looked.replace(Instant::now()).is_none();
        let stamp = folder::stamp(&self.path);
        if !is_first && stamp == state.stamp {
            return;
        }
        state.stamp = stamp;
        state.generation += 1;
        let ca = folder::read_ca(&self.path).ok().flatten().or_else(|| self.ca.clone());
        state.held = folder::read(&self.path).map(|held| match held {
            Held::Keys(keys) => Ready::Keys(keys),
            Held::WebIdentity(identity) => {
                Ready::Role(Arc::new(Role::new(identity, &self.region, ca.as_deref())))
            }
        });
    }

    async fn credentials(&self) -> provider::Result {
        self.look(false);
        let held = self.state.lock().held.clone();
        match held {
            Ok(Ready::Keys(keys)) => Ok(keys),
            Ok(Ready::Role(role)) => role.credentials().await,
            Err(err) => Err(CredentialsError::invalid_configuration(err)),
        }
    }
}

/// A role and the credentials that it last gave.
#[derive(Debug)]
struct Role {
    identity: WebIdentity,
    region: String,
    ca: Option<String>,
    /// A tokio Mutex, so that all requests wait for the one renewal.
    last: tokio::sync::Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    given: Option<Credentials>,
    /// When the token service did not give others though these were about to expire.
    failed: Option<Instant>,
}

impl Role {
    fn new(identity: WebIdentity, region: &str, ca: Option<&str>) -> Self {
        let (region, ca) = (region.to_owned(), ca.map(str::to_owned));
        Self { identity, region, ca, last: tokio::sync::Mutex::default() }
    }

    async fn credentials(&self) -> provider::Result {
        let mut last = self.last.lock().await;
        let now = SystemTime::now();
        let good_until =
            |until| last.given.clone().filter(|given| given.expiry().is_none_or(|expiry| expiry > until));
        if let Some(fresh) = good_until(now + RENEW_BEFORE) {
            return Ok(fresh);
        }
        // The token service may be away for a while; what we hold is good until it expires.
        let held = good_until(now);
        if let Some(held) = &held
            && last.failed.is_some_and(|failed| failed.elapsed() < RENEW_AGAIN_AFTER)
        {
            return Ok(held.clone());
        }
        match (self.assume().await, held) {
            (Ok(fresh), _) => {
                *last = Last { given: Some(fresh.clone()), failed: None };
                Ok(fresh)
            }
            (Err(_), Some(held)) => {
                last.failed = Some(Instant::now());
                Ok(held)
            }
            (Err(err), None) => Err(err),
        }
    }

    async fn assume(&self) -> provider::Result {
        let WebIdentity { role_arn, token_file, session_name, sts_endpoint } = &self.identity;
        let token = folder::read_file(token_file)
            .and_then(|token| {
                token.ok_or_else(|| ReadFolder::File {
                    path: token_file.clone(),
                    reason: "no token in it".to_owned(),
                })
            })
            .map_err(CredentialsError::invalid_configuration)?;
        let ca = sts_endpoint.as_ref().and(self.ca.as_deref());
        let http: SharedHttpClient = http_client(Trust::for_endpoint(sts_endpoint.as_deref(), ca))
            .map_err(CredentialsError::invalid_configuration)?;
        let mut config = aws_sdk_sts::Config::builder()
            .behavior_version(aws_sdk_sts::config::BehaviorVersion::latest())
            .region(Region::new(self.region.clone()))
            .http_client(http)
            .sleep_impl(super::client::sleep())
            .allow_no_auth();
        config.set_endpoint_url(sts_endpoint.clone());
        let answer = aws_sdk_sts::Client::from_conf(config.build())
            .assume_role_with_web_identity()
            .role_arn(role_arn)
            .role_session_name(session_name.as_deref().unwrap_or("millrace"))
            .web_identity_token(token)
            .send()
            .await
            .map_err(CredentialsError::provider_error)?;
        let keys = answer
            .credentials()
            .ok_or_else(|| CredentialsError::unhandled("the token service answered without credentials"))?;
        let expiry = SystemTime::try_from(*keys.expiration()).ok();
        Ok(Credentials::new(
            keys.access_key_id(),
            keys.secret_access_key(),
            Some(keys.session_token().to_owned()),
            expiry,
            "web identity",
        ))
    }
}
