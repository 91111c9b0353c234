//! What happens to one request, from its head to the body of its answer?

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::RwLock;
use s3s::service::S3Service;

use crate::answer::Answer;
use crate::auth::Keyring;
use crate::connection::Line;
use crate::counters::{Counters, Flight};
use crate::faults::active::{Active, Decision};
use crate::faults::rule::Fault;
use crate::outage::{Outage, OutageMode};
use crate::protocol::Bucket;
use crate::region::{self, Redirect};
use crate::sts::{self, StsConfig, escape};
use crate::target::{Operation, Target};

/// A form with a web identity token is a few kilobytes.
const MAX_FORM_BYTES: usize = 64 << 10;

/// What all requests share.
pub(crate) struct Service {
    pub s3: S3Service,
    pub buckets: Arc<BTreeMap<String, Bucket>>,
    pub keyring: Option<Keyring>,
    pub sts: Option<StsConfig>,
    pub domains: Vec<String>,
    pub redirect: Redirect,
    pub clock_offset: jiff::SignedDuration,
    pub faults: RwLock<Arc<Active>>,
    pub outage: Outage,
    pub counters: Arc<Counters>,
}

/// What decides how an answer is sent.
struct Sending<'a> {
    target: &'a Target,
    faults: &'a Active,
    decision: &'a Decision,
    line: &'a Line,
}

/// Tells hyper to close the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is dropped by the fault plan")]
pub(crate) struct Dropped;

impl Service {
    /// Answers a request.
    pub async fn answer(&self, request: Request<Incoming>, line: &Line) -> Result<Response<Answer>, Dropped> {
        let arrived = Instant::now();
        let target = Target::of(request.method(), request.uri(), request.headers(), &self.domains);
        let flight = self.counters.begin(&target);
        let faults = self.faults.read().clone();
        let decision = Arc::new(faults.decide(&target));
        if decision.has(&Fault::Hang) {
            std::future::pending::<()>().await;
        }
        if decision.has(&Fault::Drop) {
            line.ending.reset();
            return Err(Dropped);
        }
        let response = match self.planned_error(&decision) {
            Some(error) => error,
            None => self.serve(request, &target, &decision).await,
        };
        if !decision.latency.is_zero() {
            tokio::time::sleep_until((arrived + decision.latency).into()).await;
        }
        Ok(self.send(
            response,
            flight,
            Sending { target: &target, faults: &faults, decision: &decision, line },
        ))
    }

    /// Counts an answer, and puts its body under the caps and faults of its request.
    fn send(
        &self,
        mut response: Response<s3s::Body>,
        mut flight: Flight,
        how: Sending<'_>,
    ) -> Response<Answer> {
        let Sending { target, faults, decision, line } = how;
        self.set_date(response.headers_mut());
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() {
            self.counters.error(&error_code(parts.status, &body));
        }
        let body = if parts.status == StatusCode::NOT_MODIFIED { s3s::Body::empty() } else { body };
        let answer = if target.operation == Operation::GetObject && parts.status.is_success() {
            flight.content(target);
            Answer::faulty(body, flight, faults.pace(&line.stream, Instant::now()), decision, &line.ending)
        } else if target.operation.is_listing() {
            Answer::faulty(body, flight, None, decision, &line.ending)
        } else {
            Answer::whole(body, flight)
        };
        Response::from_parts(parts, answer)
    }

    /// The error that an outage or the fault plan puts in place of an answer.
    fn planned_error(&self, decision: &Decision) -> Option<Response<s3s::Body>> {
        if self.outage.now() == Some(OutageMode::InternalError) {
            return Some(error(500, "InternalError", "We encountered an internal error. Please try again."));
        }
        decision.faults.iter().find_map(|fault| match fault {
            Fault::SlowDown => Some(error(503, "SlowDown", "Please reduce your request rate.")),
            Fault::Error { status, code, message } => Some(error(*status, code, message)),
            _ => None,
        })
    }

    async fn serve(
        &self,
        request: Request<Incoming>,
        target: &Target,
        decision: &Arc<Decision>,
    ) -> Response<s3s::Body> {
        if target.operation == Operation::AssumeRoleWithWebIdentity
            && let Some(config) = &self.sts
        {
            return self.assume(config, request).await;
        }
        if let Some(answer) = self.elsewhere(&request, target) {
            return answer;
        }
        if self.keyring.is_some()
            && region::skewed(request.headers(), jiff::Timestamp::now() + self.clock_offset)
        {
            return error(
                403,
                "RequestTimeTooSkewed",
                "The difference between the request time and the current time is too large.",
            );
        }
        let mut request = request.map(s3s::Body::from);
        request.extensions_mut().insert(decision.clone());
        if self.keyring.is_none() {
            // s3s refuses signatures when it has nothing to check them with.
            request.headers_mut().remove(http::header::AUTHORIZATION);
        }
        match self.s3.call(request).await {
            Ok(response) => response,
            Err(err) => {
                tracing::error!(error = ?err, operation = target.operation.name(), "request not answered");
                error(500, "InternalError", "the request could not be answered")
            }
        }
    }

    /// The redirect for a request that was signed for another region than its bucket's.
    fn elsewhere(&self, request: &Request<Incoming>, target: &Target) -> Option<Response<s3s::Body>> {
        let region = self.buckets.get(target.bucket.as_ref()?)?.region.as_ref()?;
        let signed_for = region::signed_for(request.headers(), request.uri())?;
        if signed_for == *region {
            return None;
        }
        let (status, code, message) = match self.redirect {
            Redirect::Permanent => (
                301,
                "PermanentRedirect",
                "The bucket you are attempting to access must be addressed using the specified endpoint."
                    .to_owned(),
            ),
            Redirect::Malformed => (
                400,
                "AuthorizationHeaderMalformed",
                format!(
                    "The authorization header is malformed; the region '{signed_for}' is wrong; expecting '{region}'"
                ),
            ),
        };
        let mut response =
            error_with(status, code, &message, &format!("<Region>{}</Region>", escape(region)));
        if let Ok(region) = HeaderValue::try_from(region) {
            response.headers_mut().insert("x-amz-bucket-region", region);
        }
        Some(response)
    }

    async fn assume(&self, config: &StsConfig, request: Request<Incoming>) -> Response<s3s::Body> {
        let limited = http_body_util::Limited::new(request.into_body(), MAX_FORM_BYTES);
        let form = match limited.collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => {
                return error(400, "ValidationError", "the form could not be read, or is larger than 64 KiB");
            }
        };
        let assumed = sts::assume(config, &String::from_utf8_lossy(&form), SystemTime::now());
        if let (Some(keyring), Some(credentials)) = (&self.keyring, assumed.credentials) {
            keyring.add(credentials);
        }
        xml(assumed.status, assumed.xml)
    }

    /// The server's clock, when it is to be wrong.
    fn set_date(&self, headers: &mut HeaderMap) {
        if !self.clock_offset.is_zero() {
            let now = jiff::Timestamp::now() + self.clock_offset;
            if let Ok(date) = HeaderValue::try_from(now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()) {
                headers.insert(http::header::DATE, date);
            }
        }
    }
}

/// An S3 error answer.
fn error(status: u16, code: &str, message: &str) -> Response<s3s::Body> {
    error_with(status, code, message, "")
}

fn error_with(status: u16, code: &str, message: &str, more: &str) -> Response<s3s::Body> {
    let (code, message) = (escape(code), escape(message));
    xml(
        status,
        format!(
            r#"<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message>{more}<RequestId>0</RequestId></Error>"#
        ),
    )
}

fn xml(status: u16, text: String) -> Response<s3s::Body> {
    let mut response = Response::new(s3s::Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// The S3 error code in an error's XML, or the status for answers without one.
fn error_code(status: StatusCode, body: &s3s::Body) -> String {
    let text = body.bytes().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let code = text
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"))
        .map(|(code, _)| code.to_owned());
    code.unwrap_or_else(|| status.as_u16().to_string())
}
