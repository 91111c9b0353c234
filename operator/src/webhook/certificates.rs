//! Which certificate is shown, whom is the API server to trust, and what comes next? Pure but for the keys' randomness.
//!
//! Each certificate has an authority of its own, whose key is thrown away once it has signed: nobody can ever sign another with
//! it. At two thirds of a certificate's life the next one is made and its authority trusted beside the old; it is shown only
//! [`OVERLAP`] later, when the API server and all replicas know of it; the old authority is forgotten when its certificate has
//! expired. So neither a replica nor the API server that is late meets a certificate that it cannot place.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

/// How long a certificate is good for: as is usual where renewal is automatic.
pub const LIFE: SignedDuration = SignedDuration::from_hours(90 * 24);

/// From its making until the next one is made: two thirds of its life, so that a month is left to notice trouble.
pub const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(60 * 24);

/// From the making of the next certificate until it is shown: far longer than a replica takes to read it or the API server to
/// be told of its authority.
pub const OVERLAP: SignedDuration = SignedDuration::from_hours(1);

/// How far clocks may be apart.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_hours(1);

/// A certificate, its key, and the authority that signed it. Its Debug form has no key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Certificate {
    /// The certificate, PEM.
    pub certificate: String,
    /// Its private key, PEM.
    pub key: String,
    /// The authority's certificate, PEM.
    pub authority: String,
    /// When it was made.
    pub since: Timestamp,
    /// When it expires.
    pub until: Timestamp,
}

/// An authority that is still trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Authority {
    /// Its certificate, PEM.
    pub authority: String,
    /// When it expires.
    pub until: Timestamp,
}

/// All that is in the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Certificates {
    /// Shown to the API server.
    pub shown: Certificate,
    /// Shown next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Certificate>,
    /// Of the certificate shown before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Authority>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, for now.
    Keep,
    /// Make the next certificate.
    Stage,
    /// Show the next certificate.
    Promote,
    /// Make one that is shown at once: the shown one has expired, and there is no next.
    Replace,
    /// Trust the previous authority no longer.
    Forget,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("make a certificate for {host:?}")]
pub struct MakeCertificate {
    /// Whose.
    pub host: String,
    /// What the library says.
    pub source: rcgen::Error,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate")
            .field("since", &self.since)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl Certificate {
    /// Makes a certificate for a host, good from now on.
    ///
    /// # Errors
    /// Where the host is no name, or randomness fails.
    pub fn make(host: &str, now: Timestamp) -> Result<Self, MakeCertificate> {
        let failed = |source| MakeCertificate { host: host.to_owned(), source };
        let until = now.saturating_add(LIFE).unwrap_or(Timestamp::MAX);
        let mut authority = params(Vec::new(), "Millrace webhook authority", now, until).map_err(failed)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().map_err(failed)?).map_err(failed)?;
        let mut own = params(vec![host.to_owned()], host, now, until).map_err(failed)?;
        own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        own.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        own.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = own.signed_by(&key, &authority).map_err(failed)?;
        Ok(Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            authority: authority.pem(),
            since: now,
            until,
        })
    }
}

impl Certificates {
    /// The first.
    pub fn new(shown: Certificate) -> Self {
        Self { shown, next: None, previous: None }
    }

    /// The authorities that the API server is to trust, PEM.
    pub fn bundle(&self) -> String {
        let mut bundle = self.shown.authority.clone();
        let others = [
            self.next.as_ref().map(|next| &next.authority),
            self.previous.as_ref().map(|previous| &previous.authority),
        ];
        for authority in others.into_iter().flatten() {
            if !bundle.ends_with('\n') {
                bundle.push('\n');
            }
            bundle.push_str(authority);
        }
        bundle
    }

    /// What is to be done now.
    pub fn step(&self, now: Timestamp) -> Step {
        let is_expired = |until: Timestamp| now >= until;
        let since = |moment: Timestamp| now.duration_since(moment);
        match &self.next {
            Some(next) if is_expired(next.until) => Step::Replace,
            Some(next) if since(next.since) >= OVERLAP || is_expired(self.shown.until) => Step::Promote,
            None if is_expired(self.shown.until) => Step::Replace,
            None if since(self.shown.since) >= RENEW_AFTER => Step::Stage,
            Some(_) | None => match &self.previous {
                Some(previous) if is_expired(previous.until) => Step::Forget,
                Some(_) | None => Step::Keep,
            },
        }
    }

    /// What the Secret is to hold after a step.
    ///
    /// # Errors
    /// Where a certificate cannot be made.
    pub fn after(&self, step: Step, host: &str, now: Timestamp) -> Result<Self, MakeCertificate> {
        let mut after = self.clone();
        match step {
            Step::Keep => {}
            Step::Stage => after.next = Some(Certificate::make(host, now)?),
            Step::Promote => {
                if let Some(next) = after.next.take() {
                    let old = std::mem::replace(&mut after.shown, next);
                    after.previous = Some(Authority { authority: old.authority, until: old.until });
                }
            }
            Step::Replace => after = Self::new(Certificate::make(host, now)?),
            Step::Forget => after.previous = None,
        }
        Ok(after)
    }
}

fn params(
    hosts: Vec<String>,
    name: &str,
    now: Timestamp,
    until: Timestamp,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    // X.520 bounds a common name at 64 characters; the name that counts is the alternative one.
    let name: String = name.chars().take(64).collect();
    params.distinguished_name.push(DnType::CommonName, name);
    let moment = |timestamp: Timestamp| {
        let seconds = u64::try_from(timestamp.as_second()).unwrap_or(0);
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
    };
    params.not_before = moment(now.saturating_sub(CLOCK_SKEW).unwrap_or(now));
    params.not_after = moment(until);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "millrace-webhook.millrace-system.svc";

    fn day(day: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + day * 86_400).unwrap()
    }

    fn hours(hours: i64) -> SignedDuration {
        SignedDuration::from_hours(hours)
    }

    #[test]
    fn a_life_of_rotations_never_shows_what_is_not_trusted_or_expired() {
        let mut now = day(0);
        let mut held = Certificates::new(Certificate::make(HOST, now).unwrap());
        let mut trusted_since = vec![(held.shown.authority.clone(), now)];
        let mut steps = Vec::new();
        while now < day(211) {
            let step = held.step(now);
            held = held.after(step, HOST, now).unwrap();
            if step != Step::Keep {
                steps.push(step);
            }
            for authority in held.next.iter().map(|next| &next.authority) {
                if !trusted_since.iter().any(|(known, _)| known == authority) {
                    trusted_since.push((authority.clone(), now));
                }
            }
            assert!(now < held.shown.until);
            assert!(held.bundle().contains(&held.shown.authority));
            if let Some(previous) = &held.previous {
                assert!(held.bundle().contains(&previous.authority));
            }
            let (_, since) =
                trusted_since.iter().find(|(authority, _)| *authority == held.shown.authority).unwrap();
            assert!(*since == day(0) || now.duration_since(*since) >= OVERLAP);
            now += hours(1);
        }
        let cycle = [Step::Stage, Step::Promote, Step::Forget];
        assert_eq!(steps, [cycle, cycle, cycle].concat());
    }

    #[test]
    fn a_cluster_that_slept_starts_over_or_goes_on_with_the_next() {
        let held = Certificates::new(Certificate::make(HOST, day(0)).unwrap());
        assert_eq!(held.step(day(91)), Step::Replace);
        let staged = held.after(Step::Stage, HOST, day(60)).unwrap();
        assert_eq!(staged.step(day(60) + hours(1)), Step::Promote);
        assert_eq!(staged.step(day(100)), Step::Promote);
        assert_eq!(staged.step(day(160)), Step::Replace);
        let anew = staged.after(Step::Replace, HOST, day(160)).unwrap();
        assert_eq!((anew.step(day(160)), anew.next, anew.previous), (Step::Keep, None, None));
    }

    #[test]
    fn it_is_kept_as_text_and_its_debug_form_has_no_key() {
        let held = Certificates::new(Certificate::make(HOST, day(0)).unwrap());
        let held = held.after(Step::Stage, HOST, day(60)).unwrap();
        let text = serde_json::to_string(&held).unwrap();
        assert_eq!(serde_json::from_str::<Certificates>(&text).unwrap(), held);
        assert!(!format!("{held:?}").contains("PRIVATE KEY"));
        assert_eq!(held.bundle().matches("BEGIN CERTIFICATE").count(), 2);
    }
}
