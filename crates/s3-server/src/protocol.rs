//! How are S3's operations answered from the buckets?
//!
//! What is not overridden here, s3s answers with NotImplemented.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result, s3_error};

use crate::backend::{Backend, Content, Meta, Object as StoredObject};
use crate::body::Pieces;
use crate::conditions::{Conditions, Refusal, resolve};
use crate::config::DEFAULT_REGION;
use crate::faults::active::Decision;
use crate::faults::rule::Fault;
use crate::listing::{self, Entry, ListPage, ListQuery, MAX_KEYS, Start};
use crate::synthetic::{self, Pattern};

/// PUT is for tests that put small objects; a body is held in memory.
const MAX_PUT_BYTES: usize = 256 << 20;
/// Storage classes whose objects must be restored before they can be read.
const ARCHIVED: [&str; 2] = ["GLACIER", "DEEP_ARCHIVE"];

/// One bucket as the protocol sees it.
pub(crate) struct Bucket {
    pub backend: Arc<dyn Backend>,
    /// None for a bucket that is in any region.
    pub region: Option<String>,
    pub requester_pays: bool,
}

impl Bucket {
    fn reported_region(&self) -> String {
        self.region.clone().unwrap_or_else(|| DEFAULT_REGION.to_owned())
    }
}

/// All buckets by name.
pub(crate) struct Protocol {
    pub buckets: Arc<BTreeMap<String, Bucket>>,
}

/// An object that a GET or HEAD may have.
struct Admitted {
    object: StoredObject,
    range: std::ops::Range<u64>,
    is_partial: bool,
}

/// What GET and HEAD ask alike.
struct Wanted<'a> {
    bucket: &'a str,
    key: &'a str,
    conditions: Conditions,
    range: Option<Range>,
    payer: Option<RequestPayer>,
}

impl Protocol {
    fn bucket(&self, name: &str) -> S3Result<&Bucket> {
        self.buckets.get(name).ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))
    }

    async fn admit(&self, wanted: Wanted<'_>, decision: &Decision) -> S3Result<Admitted> {
        let Wanted { bucket, key, mut conditions, mut range, payer } = wanted;
        let bucket = self.bucket(bucket)?;
        check_payer(bucket, payer.as_ref())?;
        let opened = bucket.backend.open(key.as_bytes()).await.map_err(S3Error::internal_error)?;
        let mut object = opened.filter(|_| !decision.has(&Fault::Deleted)).ok_or_else(no_such_key)?;
        change(&mut object, key, decision);
        if decision.has(&Fault::IfMatchIgnored) {
            conditions.if_match = None;
        }
        if decision.has(&Fault::RangeIgnored) {
            range = None;
        }
        let refused = |refusal| refuse(refusal, &object.meta);
        conditions.check(&object.meta.etag, &whole_seconds(object.meta.modified)).map_err(refused)?;
        let mut bytes = resolve(range, object.meta.size).map_err(refused)?;
        if decision.has(&Fault::WrongRange) && range.is_some() {
            bytes = behind(bytes, object.meta.size);
        }
        Ok(Admitted { object, range: bytes, is_partial: range.is_some() })
    }

    async fn page(
        &self,
        query: ListQuery,
        bucket: &str,
        payer: Option<&RequestPayer>,
        decision: &Decision,
    ) -> S3Result<ListPage> {
        let bucket = self.bucket(bucket)?;
        check_payer(bucket, payer)?;
        let mut page = bucket.backend.list(query).await.map_err(S3Error::internal_error)?;
        if decision.has(&Fault::ListingOutOfOrder) {
            shuffle(&mut page.entries, decision.random);
        }
        if decision.has(&Fault::ListingWithoutEtags) {
            page.entries.iter_mut().for_each(|entry| entry.meta.etag.clear());
        }
        Ok(page)
    }
}

/// Applies the faults that make an object seem another one.
fn change(object: &mut StoredObject, key: &str, decision: &Decision) {
    let overwritten = decision.has(&Fault::Overwritten);
    if overwritten || decision.has(&Fault::CorruptBody) {
        object.content = Content::Computed(Pattern::new(u64::MAX, key.as_bytes(), 1));
    }
    if overwritten || decision.has(&Fault::ChangedEtag) {
        object.meta.etag = synthetic::etag(u64::MAX, object.meta.etag.as_bytes(), object.meta.size, 1);
    }
}

fn check_payer(bucket: &Bucket, payer: Option<&RequestPayer>) -> S3Result<()> {
    if bucket.requester_pays && payer.is_none_or(|payer| payer.as_str() != RequestPayer::REQUESTER) {
        return Err(s3_error!(
            AccessDenied,
            "Bucket is a requester pays bucket, and the request does not say that the requester pays"
        ));
    }
    Ok(())
}

fn no_such_key() -> S3Error {
    s3_error!(NoSuchKey, "The specified key does not exist.")
}

fn refuse(refusal: Refusal, meta: &Meta) -> S3Error {
    let mut headers = HeaderMap::new();
    let mut err = match refusal {
        Refusal::PreconditionFailed => {
            s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
        }
        Refusal::NotModified => {
            if let Ok(etag) = HeaderValue::try_from(format!("\"{}\"", meta.etag)) {
                headers.insert(http::header::ETAG, etag);
            }
            s3_error!(NotModified)
        }
        Refusal::InvalidRange => {
            if let Ok(size) = HeaderValue::try_from(format!("bytes */{}", meta.size)) {
                headers.insert(http::header::CONTENT_RANGE, size);
            }
            s3_error!(InvalidRange, "The requested range is not satisfiable")
        }
    };
    err.set_headers(headers);
    err
}

/// The range of the same length that begins where this one ends, or the bytes before it at the object's end.
fn behind(range: std::ops::Range<u64>, size: u64) -> std::ops::Range<u64> {
    let length = range.end - range.start;
    if range.end + length <= size { range.end..range.end + length } else { 0..length.min(size) }
}

/// Fisher and Yates, with the request's own random number.
fn shuffle(entries: &mut [Entry], mut random: u64) {
    for last in (1..entries.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        entries.swap(last, ((random >> 33) % (last as u64 + 1)) as usize);
    }
}

/// HTTP dates have no fraction of a second, so comparisons must not have one either.
fn whole_seconds(time: SystemTime) -> Timestamp {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).into()
}

fn etag(meta: &Meta) -> Option<ETag> {
    (!meta.etag.is_empty()).then(|| ETag::Strong(meta.etag.clone()))
}

fn decision(extensions: &http::Extensions) -> Arc<Decision> {
    extensions.get::<Arc<Decision>>().cloned().unwrap_or_default()
}

/// How keys are written into a page.
fn written(key: &[u8], encoding: Option<&EncodingType>) -> String {
    if encoding.is_some() { listing::url_encode(key) } else { String::from_utf8_lossy(key).into_owned() }
}

fn contents(page: &ListPage, encoding: Option<&EncodingType>) -> ObjectList {
    let object = |entry: &Entry| Object {
        e_tag: etag(&entry.meta),
        key: Some(written(&entry.key, encoding)),
        last_modified: Some(entry.meta.modified.into()),
        size: i64::try_from(entry.meta.size).ok(),
        storage_class: Some(match &entry.meta.storage_class {
            Some(class) => class.to_string().into(),
            None => ObjectStorageClass::from_static(ObjectStorageClass::STANDARD),
        }),
        ..Object::default()
    };
    page.entries.iter().map(object).collect()
}

fn common_prefixes(page: &ListPage, encoding: Option<&EncodingType>) -> CommonPrefixList {
    page.common_prefixes
        .iter()
        .map(|prefix| CommonPrefix { prefix: Some(written(prefix, encoding)) })
        .collect()
}

fn max_keys(asked: Option<i32>) -> S3Result<usize> {
    match asked {
        None => Ok(MAX_KEYS),
        Some(asked) => usize::try_from(asked)
            .map(|asked| asked.min(MAX_KEYS))
            .map_err(|_| s3_error!(InvalidArgument, "max-keys is {asked}, and must not be negative")),
    }
}

#[async_trait::async_trait]
impl S3 for Protocol {
    async fn list_buckets(
        &self,
        _req: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let bucket = |(name, bucket): (&String, &Bucket)| s3s::dto::Bucket {
            name: Some(name.clone()),
            bucket_region: Some(bucket.reported_region()),
            creation_date: Some(SystemTime::UNIX_EPOCH.into()),
        };
        let buckets = self.buckets.iter().map(bucket).collect();
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(buckets), ..ListBucketsOutput::default() }))
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        let bucket = self.bucket(&req.input.bucket)?;
        let bucket_region = Some(bucket.reported_region());
        Ok(S3Response::new(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() }))
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let region = self.bucket(&req.input.bucket)?.reported_region();
        // S3 leaves its first region out.
        let location_constraint = (region != DEFAULT_REGION).then(|| region.into());
        Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        let start = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => Start::from_token(token)
                .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))?,
            (None, Some(key)) => Start::After(key.clone().into_bytes()),
            (None, None) => Start::First,
        };
        let query = ListQuery {
            prefix: input.prefix.clone().unwrap_or_default().into_bytes(),
            delimiter: input.delimiter.clone().unwrap_or_default().into_bytes(),
            start,
            max_keys: max_keys(input.max_keys)?,
        };
        let asked = query.max_keys;
        let page =
            self.page(query, &input.bucket, input.request_payer.as_ref(), &decision(&req.extensions)).await?;
        let encoding = input.encoding_type;
        let encoded = |text: Option<String>| text.map(|text| written(text.as_bytes(), encoding.as_ref()));
        Ok(S3Response::new(ListObjectsV2Output {
            key_count: i32::try_from(page.entries.len() + page.common_prefixes.len()).ok(),
            max_keys: i32::try_from(asked).ok(),
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.as_ref().map(Start::token),
            contents: Some(contents(&page, encoding.as_ref())),
            common_prefixes: Some(common_prefixes(&page, encoding.as_ref())),
            name: Some(input.bucket),
            prefix: encoded(Some(input.prefix.unwrap_or_default())),
            delimiter: encoded(input.delimiter),
            start_after: encoded(input.start_after),
            continuation_token: input.continuation_token,
            encoding_type: encoding,
            request_charged: None,
        }))
    }

    async fn list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let input = req.input;
        let delimiter = input.delimiter.clone().unwrap_or_default().into_bytes();
        // Version 1 has no tokens: a marker that ends with the delimiter may be a common prefix of the page before.
        let start = match input.marker.clone().map(String::into_bytes) {
            None => Start::First,
            Some(marker) if !delimiter.is_empty() && marker.ends_with(&delimiter) => {
                Start::AfterPrefix(marker)
            }
            Some(marker) => Start::After(marker),
        };
        let prefix = input.prefix.clone().unwrap_or_default().into_bytes();
        let query = ListQuery { prefix, delimiter, start, max_keys: max_keys(input.max_keys)? };
        let asked = query.max_keys;
        let page =
            self.page(query, &input.bucket, input.request_payer.as_ref(), &decision(&req.extensions)).await?;
        let encoding = input.encoding_type;
        let encoded = |text: Option<String>| text.map(|text| written(text.as_bytes(), encoding.as_ref()));
        let next_marker = match &page.next {
            Some(Start::After(key) | Start::AfterPrefix(key)) => Some(written(key, encoding.as_ref())),
            Some(Start::First) | None => None,
        };
        Ok(S3Response::new(ListObjectsOutput {
            max_keys: i32::try_from(asked).ok(),
            is_truncated: Some(page.next.is_some()),
            next_marker,
            contents: Some(contents(&page, encoding.as_ref())),
            common_prefixes: Some(common_prefixes(&page, encoding.as_ref())),
            name: Some(input.bucket),
            prefix: encoded(Some(input.prefix.unwrap_or_default())),
            delimiter: encoded(input.delimiter),
            marker: encoded(Some(input.marker.unwrap_or_default())),
            encoding_type: encoding,
            request_charged: None,
        }))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = req.input;
        let wanted = Wanted {
            bucket: &input.bucket,
            key: &input.key,
            conditions: Conditions {
                if_match: input.if_match,
                if_none_match: input.if_none_match,
                if_modified_since: input.if_modified_since,
                if_unmodified_since: input.if_unmodified_since,
            },
            range: None,
            payer: input.request_payer,
        };
        let admitted = self.admit(wanted, &decision(&req.extensions)).await?;
        let meta = &admitted.object.meta;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(meta.size).ok(),
            e_tag: etag(meta),
            last_modified: Some(meta.modified.into()),
            storage_class: meta.storage_class.as_ref().map(|class| class.to_string().into()),
            ..HeadObjectOutput::default()
        }))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        let wanted = Wanted {
            bucket: &input.bucket,
            key: &input.key,
            conditions: Conditions {
                if_match: input.if_match,
                if_none_match: input.if_none_match,
                if_modified_since: input.if_modified_since,
                if_unmodified_since: input.if_unmodified_since,
            },
            range: input.range,
            payer: input.request_payer,
        };
        let Admitted { object, range, is_partial } = self.admit(wanted, &decision(&req.extensions)).await?;
        let StoredObject { meta, content } = object;
        if meta.storage_class.as_ref().is_some_and(|class| ARCHIVED.contains(&class.as_ref())) {
            return Err(s3_error!(
                InvalidObjectState,
                "The operation is not valid for the object's storage class"
            ));
        }
        let content_range = is_partial
            .then(|| format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), meta.size));
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(range.end - range.start).ok(),
            content_range,
            e_tag: etag(&meta),
            last_modified: Some(meta.modified.into()),
            storage_class: meta.storage_class.as_ref().map(|class| class.to_string().into()),
            body: Some(StreamingBlob::new(Pieces::new(content, range))),
            ..GetObjectOutput::default()
        }))
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        let bucket = self.bucket(&input.bucket)?;
        let exists = bucket.backend.open(input.key.as_bytes()).await.map_err(S3Error::internal_error)?;
        if matches!(input.if_none_match, Some(ETagCondition::Any)) && exists.is_some() {
            return Err(s3_error!(PreconditionFailed));
        }
        let body = match input.body {
            Some(body) => s3s::Body::from(body)
                .store_all_limited(MAX_PUT_BYTES)
                .await
                .map_err(|err| S3Error::with_source(s3s::S3ErrorCode::EntityTooLarge, err))?,
            None => Bytes::new(),
        };
        let stored = bucket.backend.put(input.key.as_bytes(), body).await.map_err(S3Error::internal_error)?;
        let meta = stored.ok_or_else(|| s3_error!(MethodNotAllowed, "This bucket is read-only"))?;
        Ok(S3Response::new(PutObjectOutput { e_tag: etag(&meta), ..PutObjectOutput::default() }))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let bucket = self.bucket(&req.input.bucket)?;
        let writable =
            bucket.backend.delete(req.input.key.as_bytes()).await.map_err(S3Error::internal_error)?;
        if writable {
            Ok(S3Response::new(DeleteObjectOutput::default()))
        } else {
            Err(s3_error!(MethodNotAllowed, "This bucket is read-only"))
        }
    }
}
