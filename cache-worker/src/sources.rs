//! Where are the objects of a dataset's sources, and how is each reached?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_api::ids::OriginId;
use millrace_api::index::SourceEntry;
use millrace_control::proto;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::origin::config::{Addressing, CredentialsConfig, Deadlines, OriginConfig};
use crate::origin::counters::Counters;
use crate::origin::window::{Window, WindowConfig};
use crate::origin::{OpenOrigin, Origin, Troubled};
use crate::versions::Version;

/// Most sources of a dataset.
pub const MAX_SOURCES: usize = 16;

/// One source as this worker was told of it: by the control port, or a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SourceConfig {
    /// Where it appears in the mount, no leading or trailing slash; empty for the root.
    pub path: String,
    /// URL; empty: the region's own endpoint.
    pub endpoint: String,
    /// Bucket.
    pub bucket: String,
    /// What every key of the source starts with.
    pub prefix: String,
    /// Region; empty: learned from the server.
    pub region: String,
    /// `bucket.endpoint/key` in place of `endpoint/bucket/key`.
    pub virtual_hosted: bool,
    /// Whether requests say that we pay for them.
    pub requester_pays: bool,
    /// Globs on the key below the prefix that are shown; none: everything.
    pub include: Vec<String>,
    /// Globs on the key below the prefix that are not shown.
    pub exclude: Vec<String>,
    /// Name of a folder in the credentials folder; empty: anonymous, or the SDK's chain.
    pub credentials: String,
    /// Requests are not signed.
    pub anonymous: bool,
    /// Profile of the AWS configuration files; empty: the worker's, where `credentials` is empty too.
    pub profile: String,
}

/// Why sources cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UseSources {
    /// Too many, or none.
    #[error("{count} sources: give 1 to {MAX_SOURCES}")]
    Count {
        /// How many.
        count: usize,
    },
    /// A source names credentials and the worker has no folder of them.
    #[error(
        "source {path:?} names credentials {name:?}, but the worker was started without --credentials-dir"
    )]
    NoCredentialsDir {
        /// The source.
        path: String,
        /// The name.
        name: String,
    },
    /// The name of credentials is no plain folder name.
    #[error("source {path:?}: credentials {name:?} must be a plain name")]
    CredentialsName {
        /// The source.
        path: String,
        /// The name.
        name: String,
    },
    /// A source cannot be set up.
    #[error("source {path:?}")]
    Open {
        /// The source.
        path: String,
        /// Why.
        source: OpenOrigin,
    },
}

/// What a worker needs to reach sources, besides what each says itself.
#[derive(Debug, Clone)]
pub struct Access {
    /// Folder with one folder for each named set of credentials.
    pub credentials_dir: Option<PathBuf>,
    /// Profile for sources that name no credentials.
    pub profile: Option<String>,
}

/// The sources in use and their S3 sides.
#[derive(Debug)]
pub struct Sources {
    access: Access,
    window: Arc<Window>,
    counters: Arc<Counters>,
    in_use: RwLock<Vec<(SourceConfig, Arc<Origin>)>>,
    /// Those last set up: a listing that fails leaves them unused.
    prepared: RwLock<Vec<(SourceConfig, Arc<Origin>)>>,
}

impl Sources {
    /// No sources yet. All of a worker share one window and its counters.
    pub fn new(access: Access) -> Self {
        let (window, counters) = (Window::new(WindowConfig::default()), Arc::new(Counters::default()));
        Self { access, window, counters, in_use: RwLock::default(), prepared: RwLock::default() }
    }

    /// The window that all requests go through.
    pub fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// What has been asked of S3.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The sources in use, in the order given, with their S3 sides.
    pub fn in_use(&self) -> Vec<(SourceConfig, Arc<Origin>)> {
        self.in_use.read().clone()
    }

    /// Sets sources up without using them yet; those that are in use already keep their connections.
    ///
    /// # Errors
    /// [`UseSources`] names the source.
    pub fn prepare(
        &self,
        configs: Vec<SourceConfig>,
    ) -> Result<Vec<(SourceConfig, Arc<Origin>)>, UseSources> {
        if configs.is_empty() || configs.len() > MAX_SOURCES {
            return Err(UseSources::Count { count: configs.len() });
        }
        let mut before = self.in_use();
        before.extend(self.prepared.read().iter().cloned());
        let mut next = Vec::with_capacity(configs.len());
        for config in configs {
            let known = before.iter().find(|(known, _)| *known == config);
            let origin = match known {
                Some((_, origin)) => Arc::clone(origin),
                None => Arc::new(self.open(&config)?),
            };
            next.push((config, origin));
        }
        *self.prepared.write() = next.clone();
        Ok(next)
    }

    /// The source whose origin has failed for the longest time, of those that fail now; its path, and how it fails.
    pub fn trouble(&self) -> Option<(String, Troubled)> {
        let mut all = self.in_use();
        all.extend(self.prepared.read().iter().cloned());
        let troubled = all.into_iter().filter_map(|(config, origin)| Some((config.path, origin.trouble()?)));
        troubled.min_by_key(|(_, troubled)| troubled.since_ms)
    }

    /// The origins that fail now.
    pub fn troubled(&self) -> Vec<Arc<Origin>> {
        let mut troubled: Vec<Arc<Origin>> = Vec::new();
        for (_, origin) in self.in_use().into_iter().chain(self.prepared.read().iter().cloned()) {
            let is_known = troubled.iter().any(|known| Arc::ptr_eq(known, &origin));
            if !is_known && origin.trouble().is_some() {
                troubled.push(origin);
            }
        }
        troubled
    }

    /// Takes prepared sources into use.
    pub fn set(&self, prepared: Vec<(SourceConfig, Arc<Origin>)>) {
        *self.in_use.write() = prepared;
    }

    /// Gives a version the S3 sides of its sources, matched by place in the mount, endpoint and bucket. Where none
    /// matches, the version keeps what it had: an older version may be of a source that is configured no more.
    pub fn attach(&self, version: &Version) {
        let in_use = self.in_use();
        let find = |path: &str, origin_id: OriginId| {
            let mut same_bucket = in_use.iter().filter(|(config, _)| config.entry().origin() == origin_id);
            let same_place = same_bucket.clone().find(|(config, _)| config.path == path);
            same_place.or_else(|| same_bucket.next())
        };
        let origins = (0u8..).zip(version.view().sources()).map(|(number, source)| {
            let found = find(source.path, source.origin).map(|(_, origin)| Arc::clone(origin));
            found.or_else(|| version.origin(number))
        });
        let origins = origins.collect();
        version.set_origins(origins);
    }

    fn open(&self, config: &SourceConfig) -> Result<Origin, UseSources> {
        let credentials = self.credentials(config)?;
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let origin = OriginConfig {
            endpoint: text(&config.endpoint),
            region: text(&config.region),
            bucket: config.bucket.clone(),
            addressing: if config.virtual_hosted { Addressing::VirtualHosted } else { Addressing::Path },
            credentials,
            ca: None,
            requester_pays: config.requester_pays,
            deadlines: Deadlines::default(),
        };
        Origin::new(origin, Arc::clone(&self.window), Arc::clone(&self.counters))
            .map_err(|source| UseSources::Open { path: config.path.clone(), source })
    }

    fn credentials(&self, config: &SourceConfig) -> Result<CredentialsConfig, UseSources> {
        if config.anonymous {
            return Ok(CredentialsConfig::Anonymous);
        }
        if config.credentials.is_empty() {
            let own = (!config.profile.is_empty()).then(|| config.profile.clone());
            let profile = own.or_else(|| self.access.profile.clone());
            return Ok(profile.map_or(CredentialsConfig::Chain, CredentialsConfig::Profile));
        }
        let (path, name) = (config.path.clone(), config.credentials.clone());
        let is_plain = Path::new(&name).file_name().is_some_and(|plain| plain == name.as_str());
        if !is_plain {
            return Err(UseSources::CredentialsName { path, name });
        }
        let Some(dir) = &self.access.credentials_dir else {
            return Err(UseSources::NoCredentialsDir { path, name });
        };
        Ok(CredentialsConfig::Folder(dir.join(name)))
    }
}

impl SourceConfig {
    /// The source as it is written into an index.
    pub fn entry(&self) -> SourceEntry {
        SourceEntry {
            path: self.path.clone(),
            endpoint: self.endpoint.clone(),
            bucket: self.bucket.clone(),
            prefix: self.prefix.clone(),
            region: self.region.clone(),
        }
    }
}

impl From<proto::Source> for SourceConfig {
    fn from(source: proto::Source) -> Self {
        let has_endpoint = !source.endpoint.is_empty();
        let virtual_hosted = match source.addressing() {
            proto::Addressing::Unspecified => !has_endpoint,
            proto::Addressing::Path => false,
            proto::Addressing::VirtualHosted => true,
        };
        Self {
            path: source.path.trim_matches('/').to_owned(),
            endpoint: source.endpoint,
            bucket: source.bucket,
            prefix: source.prefix,
            region: source.region,
            virtual_hosted,
            requester_pays: source.requester_pays,
            include: source.include,
            exclude: source.exclude,
            credentials: source.credentials,
            anonymous: source.anonymous,
            profile: source.profile,
        }
    }
}
