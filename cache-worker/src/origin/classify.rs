//! What does a failed call of the SDK mean?

use std::error::Error;
use std::io;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::dns::ResolveDnsError;

use super::error::OriginErrorKind as Kind;

/// What was made of a failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub kind: Kind,
    /// The other side's own words.
    pub said: String,
    /// The bucket's region, where the answer names it.
    pub region: Option<String>,
}

/// Longest text of the other side that is kept, characters: it ends up in logs and status.
const MAX_SAID: usize = 300;

/// Judges a call that gave no answer, or an error.
pub(super) fn of_call<E>(err: &SdkError<E, HttpResponse>) -> Verdict
where
    E: ProvideErrorMetadata + Error + 'static,
{
    match err {
        SdkError::ServiceError(service) => {
            let meta = service.err().meta();
            of_answer(service.raw(), meta.code().unwrap_or_default(), meta.message().unwrap_or_default())
        }
        // The head came but could not be made sense of, or the rest of a short answer did not come.
        SdkError::ResponseError(response) => match of_chain(err) {
            verdict if verdict.kind == Kind::Unexpected => of_answer(response.raw(), "", &verdict.said),
            verdict => verdict,
        },
        SdkError::TimeoutError(_) => verdict(Kind::TimedOut, ""),
        SdkError::DispatchFailure(failure) => match of_chain(err) {
            verdict if verdict.kind == Kind::Unexpected && failure.is_timeout() => {
                Verdict { kind: Kind::Unreachable, ..verdict }
            }
            // What came is no HTTP, but TLS for example.
            verdict if verdict.said.starts_with("invalid HTTP") => verdict,
            verdict if verdict.kind == Kind::Unexpected && !failure.is_user() => {
                Verdict { kind: Kind::Reset, ..verdict }
            }
            verdict => verdict,
        },
        _ => of_chain(err),
    }
}

/// Judges a body that broke off; whatever the words, bytes are missing.
pub(super) fn of_body(err: &(dyn Error + 'static)) -> Verdict {
    match of_chain(err) {
        verdict if verdict.kind == Kind::Reset || verdict.kind == Kind::TimedOut => verdict,
        verdict => Verdict { kind: Kind::Truncated, ..verdict },
    }
}

fn verdict(kind: Kind, said: &str) -> Verdict {
    Verdict { kind, said: said.chars().take(MAX_SAID).collect(), region: None }
}

fn of_answer(raw: &HttpResponse, code: &str, message: &str) -> Verdict {
    let status = raw.status().as_u16();
    let body = raw.body().bytes().map(String::from_utf8_lossy).unwrap_or_default();
    let region = raw
        .headers()
        .get("x-amz-bucket-region")
        .map(str::to_owned)
        .or_else(|| element(&body, "Region").map(str::to_owned));
    let kind = kind_of(status, code, message);
    let said = match (code, message) {
        ("", "") => format!("status {status}"),
        ("", message) => format!("status {status}: {message}"),
        (code, "") => code.to_owned(),
        (code, message) => format!("{code}: {message}"),
    };
    Verdict { region, ..verdict(kind, &said) }
}

/// Codes are from <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>, KMS' as S3 passes them on.
fn kind_of(status: u16, code: &str, message: &str) -> Kind {
    let message = message.to_ascii_lowercase();
    match code {
        "SlowDown"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded" => Kind::Throttled,
        "NoSuchBucket" => Kind::NoSuchBucket,
        "NoSuchKey" | "NoSuchVersion" => Kind::NoSuchKey,
        "PreconditionFailed" => Kind::Changed,
        // The range lies within the indexed size, so the object has shrunk.
        "InvalidRange" => Kind::Changed,
        "InvalidObjectState" => Kind::Archived,
        "InvalidAccessKeyId" => Kind::InvalidAccessKey,
        "SignatureDoesNotMatch" => Kind::SignatureMismatch,
        "ExpiredToken" | "ExpiredTokenException" | "InvalidToken" | "TokenRefreshRequired" => {
            Kind::ExpiredToken
        }
        "RequestTimeTooSkewed" | "RequestExpired" => Kind::ClockSkew,
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "TemporaryRedirect" | "Redirect" => {
            Kind::Region
        }
        "RequestTimeout" => Kind::TimedOut,
        "InternalError" | "ServiceUnavailable" => of_status(status.max(500)),
        _ if code.starts_with("KMS.") => Kind::Kms,
        "AccessDenied" | "AllAccessDisabled" | "AccountProblem" if message.contains("kms:") => Kind::Kms,
        "AccessDenied" if message.contains("requester pays") || message.contains("requester-pays") => {
            Kind::RequesterPays
        }
        "AccessDenied" | "AllAccessDisabled" | "AccountProblem" => Kind::AccessDenied,
        _ => of_status(status),
    }
}

fn of_status(status: u16) -> Kind {
    match status {
        301 | 302 | 307 | 308 => Kind::Region,
        401 | 403 => Kind::AccessDenied,
        // 404 without a code of S3's is of a proxy that does not find the server: no word about the object.
        408 => Kind::TimedOut,
        412 => Kind::Changed,
        416 => Kind::Changed,
        429 | 503 => Kind::Throttled,
        500..=599 => Kind::Unavailable,
        _ => Kind::Unexpected,
    }
}

/// Looks for the deepest cause that says something.
fn of_chain(err: &(dyn Error + 'static)) -> Verdict {
    let mut is_of_credentials = false;
    let mut found = None;
    let mut last = String::new();
    for cause in chain(err) {
        let text = cause.to_string();
        let kind = if cause.is::<rustls::Error>() {
            Some(Kind::Tls)
        } else if cause.is::<ResolveDnsError>()
            || text == "dns error"
            || text.starts_with("failed to lookup address")
        {
            Some(Kind::Dns)
        } else {
            cause.downcast_ref::<io::Error>().and_then(of_io)
        };
        is_of_credentials |= cause.is::<CredentialsError>();
        found = kind.or(found);
        last = text;
    }
    match found {
        // A token service that is away comes back; any other reason is for the user to cure.
        Some(kind) if is_of_credentials && kind.is_transient() => {
            verdict(kind, &format!("get credentials: {last}"))
        }
        _ if is_of_credentials => verdict(Kind::Credentials, &last),
        found => verdict(found.unwrap_or(Kind::Unexpected), &last),
    }
}

fn of_io(err: &io::Error) -> Option<Kind> {
    match err.kind() {
        io::ErrorKind::ConnectionRefused => Some(Kind::Refused),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected => Some(Kind::Reset),
        io::ErrorKind::UnexpectedEof => Some(Kind::Truncated),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable | io::ErrorKind::TimedOut => {
            Some(Kind::Unreachable)
        }
        _ => None,
    }
}

/// An error and its causes; `io::Error::source` skips the error it wraps, so that is gone into.
fn chain<'a>(err: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(err), |&err| {
        match err.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => err.source(),
        }
    })
    // An error that is its own cause must not hold us for ever.
    .take(32)
}

/// The text of the first element of that name; enough for the short and flat error documents of S3.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once('<')?;
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_of_s3_are_told_apart() {
        for (status, code, message, kind) in [
            (403, "AccessDenied", "Access Denied", Kind::AccessDenied),
            (
                403,
                "AccessDenied",
                "User: arn:aws:iam::1:user/u is not authorized to perform: kms:Decrypt on the resource",
                Kind::Kms,
            ),
            (400, "KMS.DisabledException", "", Kind::Kms),
            (403, "InvalidAccessKeyId", "", Kind::InvalidAccessKey),
            (403, "SignatureDoesNotMatch", "", Kind::SignatureMismatch),
            (403, "RequestTimeTooSkewed", "", Kind::ClockSkew),
            (400, "ExpiredToken", "", Kind::ExpiredToken),
            (403, "InvalidObjectState", "", Kind::Archived),
            (404, "NoSuchBucket", "", Kind::NoSuchBucket),
            (404, "NoSuchKey", "", Kind::NoSuchKey),
            (404, "", "404 page not found", Kind::Unexpected),
            (
                403,
                "AccessDenied",
                "not authorized to perform: s3:GetObject on arn:aws:s3:::kms-logs/a",
                Kind::AccessDenied,
            ),
            (412, "PreconditionFailed", "", Kind::Changed),
            (416, "InvalidRange", "", Kind::Changed),
            (503, "SlowDown", "", Kind::Throttled),
            (429, "", "", Kind::Throttled),
            (500, "InternalError", "", Kind::Unavailable),
            (502, "", "", Kind::Unavailable),
            (301, "PermanentRedirect", "", Kind::Region),
            (400, "AuthorizationHeaderMalformed", "", Kind::Region),
            (418, "Teapot", "", Kind::Unexpected),
        ] {
            assert_eq!(kind_of(status, code, message), kind, "{code}");
        }
    }

    #[test]
    fn the_region_is_read_from_an_error_document() {
        assert_eq!(element("<Error><Region>eu-west-1</Region></Error>", "Region"), Some("eu-west-1"));
        assert_eq!(element("<Error><Region></Region></Error>", "Region"), None);
        assert_eq!(element("<Error><Region>", "Region"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn any_error_document_can_be_looked_through(xml in "(<|>|/|Region|<Region>|</Region>|[a-z\u{e9}]){0,12}") {
            if let Some(text) = element(&xml, "Region") {
                prop_assert!(!text.is_empty() && !text.contains('<'));
            }
        }
    }

    #[test]
    fn an_io_error_inside_another_is_found() {
        let inner = io::Error::new(io::ErrorKind::ConnectionRefused, "refused");
        assert_eq!(of_chain(&io::Error::other(inner)).kind, Kind::Refused);
    }
}
