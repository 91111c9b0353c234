//! How fast is a good S3 client that keeps nothing?
//!
//! The baseline of most cases: aws-sdk-s3 with many requests in flight, bodies thrown away as they come.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Config, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedAsyncSleep, StalledStreamProtectionConfig,
};
use aws_smithy_async::rt::sleep::TokioSleep;
use tokio::task::JoinSet;

use crate::lab::Lab;

/// Bytes of a large object that one request asks for; what AWS recommends for parallel ranges (8 to 16 MB).
pub const PART_BYTES: u64 = 8 << 20;

/// Numbers of requests in flight among which the best is chosen.
pub const WINDOWS: [usize; 5] = [4, 8, 16, 32, 64];

/// What one request gets.
#[derive(Debug, Clone)]
pub struct Part {
    /// The object.
    pub key: String,
    /// Bytes of it.
    pub range: Range<u64>,
    /// Whether these are all its bytes, so that no range has to be named.
    pub is_whole: bool,
}

/// A client of one bucket.
#[derive(Debug, Clone)]
pub struct Plain {
    client: Client,
    bucket: String,
}

/// Cuts objects into parts.
pub fn parts(objects: &[(String, u64)]) -> Vec<Part> {
    let mut parts = Vec::new();
    for (key, size) in objects {
        let mut start = 0;
        while start < *size {
            let end = (start + PART_BYTES).min(*size);
            parts.push(Part { key: key.clone(), range: start..end, is_whole: end - start == *size });
            start = end;
        }
    }
    parts
}

impl Plain {
    /// A client without credentials, set up for speed: no checksums, no retries, no watching of slow streams.
    pub fn new(endpoint: &str, bucket: &str) -> Self {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(endpoint)
            .force_path_style(true)
            .allow_no_auth()
            .http_client(aws_smithy_http_client::Builder::new().pool_max_idle_per_host(256).build_http())
            .sleep_impl(SharedAsyncSleep::new(TokioSleep::new()))
            .retry_config(RetryConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .build();
        Self { client: Client::from_conf(config), bucket: bucket.to_owned() }
    }

    /// Gets all parts, `window` at a time, and says how long it took.
    ///
    /// # Errors
    /// Where a request fails or a body is short.
    pub fn download(&self, lab: &Lab, parts: &[Part], window: usize) -> Result<Duration> {
        let (parts, next) = (Arc::<[Part]>::from(parts), Arc::new(AtomicUsize::new(0)));
        let started = Instant::now();
        lab.wait(async {
            let mut tasks = JoinSet::new();
            for _ in 0..window.min(parts.len()) {
                let (this, parts, next) = (self.clone(), Arc::clone(&parts), Arc::clone(&next));
                tasks.spawn(async move {
                    while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                        this.get(part).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended??;
                lab.check()?;
            }
            anyhow::Ok(())
        })?;
        Ok(started.elapsed())
    }

    /// Tries all windows once and returns the fastest.
    ///
    /// # Errors
    /// As [`download`](Self::download).
    pub fn best_window(&self, lab: &Lab, parts: &[Part]) -> Result<usize> {
        let mut best = (Duration::MAX, 1);
        for window in WINDOWS {
            best = best.min((self.download(lab, parts, window)?, window));
        }
        Ok(best.1)
    }

    /// Time until a range has been received, as one request alone.
    ///
    /// # Errors
    /// As [`download`](Self::download).
    pub fn latency(&self, lab: &Lab, key: &str, range: Range<u64>) -> Result<Duration> {
        let part = Part { key: key.to_owned(), range, is_whole: false };
        let started = Instant::now();
        lab.wait(self.get(&part))?;
        Ok(started.elapsed())
    }

    /// All objects with their sizes.
    ///
    /// # Errors
    /// Where a request fails.
    pub fn objects(&self, lab: &Lab) -> Result<Vec<(String, u64)>> {
        lab.wait(async {
            let (mut objects, mut token) = (Vec::new(), None);
            loop {
                let request =
                    self.client.list_objects_v2().bucket(&self.bucket).set_continuation_token(token);
                let page = request.send().await.context("list")?;
                let of = |object: &aws_sdk_s3::types::Object| {
                    Some((object.key()?.to_owned(), u64::try_from(object.size()?).ok()?))
                };
                objects.extend(page.contents().iter().filter_map(of));
                token = page.next_continuation_token;
                if token.is_none() {
                    return Ok(objects);
                }
                lab.check()?;
            }
        })
    }

    /// Lists up to `pages` pages of keys, one after the other, and returns keys and time.
    ///
    /// # Errors
    /// Where a request fails.
    pub fn list(&self, lab: &Lab, pages: usize) -> Result<(u64, Duration)> {
        let started = Instant::now();
        let keys = lab.wait(async {
            let (mut keys, mut token) = (0, None);
            for _ in 0..pages {
                let request =
                    self.client.list_objects_v2().bucket(&self.bucket).set_continuation_token(token);
                let page = request.send().await.context("list")?;
                keys += page.contents().len() as u64;
                token = page.next_continuation_token;
                if token.is_none() {
                    break;
                }
                lab.check()?;
            }
            anyhow::Ok(keys)
        })?;
        Ok((keys, started.elapsed()))
    }

    async fn get(&self, part: &Part) -> Result<()> {
        let Part { key, range, is_whole } = part;
        let mut request = self.client.get_object().bucket(&self.bucket).key(key);
        if !is_whole {
            request = request.range(format!("bytes={}-{}", range.start, range.end - 1));
        }
        let mut body = request.send().await.with_context(|| format!("get {key:?}"))?.body;
        let mut received = 0;
        while let Some(bytes) = body.next().await {
            received += bytes.with_context(|| format!("receive {key:?}"))?.len() as u64;
        }
        ensure!(received == range.end - range.start, "{key:?}: {received} bytes came for {range:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_objects() {
        let parts = parts(&[("a".to_owned(), PART_BYTES + 1), ("b".to_owned(), 5), ("c".to_owned(), 0)]);
        let seen: Vec<_> =
            parts.iter().map(|part| (part.key.as_str(), part.range.clone(), part.is_whole)).collect();
        assert_eq!(
            seen,
            [("a", 0..PART_BYTES, false), ("a", PART_BYTES..PART_BYTES + 1, false), ("b", 0..5, true)]
        );
    }
}
