//! Which conditions hold of a Dataset, for what reason, and what can a user do about it? Pure.

use millrace_api::dataset::conditions::{self, Holds, Verdict, reason};
use millrace_api::dataset::spec::WarmUpWhen;
use millrace_api::names;
use millrace_control::degraded;
use millrace_control::warm_up::{Phase, WarmUp};

use super::roll::Roll;
use super::status::{Facts, serving, talking};
use super::trouble::shortened;
use crate::workers::listing::Listing;
use crate::workers::seen;

/// All conditions of a Dataset that is not deleted. `warm_up` is that of the version in use.
pub fn of(facts: &Facts<'_>, warm_up: Option<&WarmUp>) -> [Verdict; 5] {
    [accepted(facts), indexed(facts), ready(facts), warm(facts, warm_up), degraded(facts)]
}

fn verdict(
    kind: &'static str,
    holds: impl Into<Holds>,
    reason: &'static str,
    message: impl Into<String>,
) -> Verdict {
    Verdict { kind, holds: holds.into(), reason, message: message.into() }
}

fn accepted(facts: &Facts<'_>) -> Verdict {
    if facts.problems.is_empty() {
        return verdict(conditions::ACCEPTED, true, reason::VALID, "");
    }
    verdict(conditions::ACCEPTED, false, reason::INVALID, facts.problems.join("; "))
}

/// A failure of the bucket as a user can act upon it: his field, what S3 says, and the Secret to look at.
fn origin_words(facts: &Facts<'_>, why: &str, message: &str, source: &str) -> String {
    let sources = &facts.spec.sources;
    let wanted = source.trim_matches('/');
    let at = sources.iter().position(|source| source.path.trim_matches('/') == wanted);
    let Some((at, source)) = at.and_then(|at| Some((at, sources.get(at)?))) else {
        return shortened(&format!("{message} ({why})"));
    };
    let mut words = shortened(&format!("spec.sources[{at}], bucket {}: {message} ({why})", source.s3.bucket));
    let is_about_keys = [
        "AccessDenied",
        "Credentials",
        "Signature",
        "AccessKey",
        "Token",
        "Forbidden",
        "Unauthorized",
        "Expired",
    ]
    .iter()
    .any(|word| why.contains(word));
    if let Some(secret) = source.s3.credentials.secret_ref.as_ref().filter(|_| is_about_keys) {
        words.push_str(&format!("; check secret {}/{}", facts.owner.namespace, secret.name));
    } else if let Some(account) = facts.spec.workers.service_account_name.as_ref().filter(|_| is_about_keys) {
        words.push_str(&format!("; check service account {}/{account}", facts.owner.namespace));
    }
    words
}

fn listing_failure(facts: &Facts<'_>) -> Option<String> {
    match facts.listing {
        // It is true until another try says otherwise.
        Listing::Failed { failure, .. } | Listing::Running { former: Some(failure), .. } => {
            Some(origin_words(facts, &failure.reason, &failure.message, &failure.source))
        }
        Listing::Idle | Listing::Running { former: None, .. } | Listing::Made { .. } => None,
    }
}

fn indexed(facts: &Facts<'_>) -> Verdict {
    if let Some(version) = facts.version {
        let left_out = match version.left_out {
            0 => String::new(),
            count => format!(", {count} keys left out"),
        };
        let newer = if facts.is_current { "" } else { "; what was asked for since is not listed yet" };
        return verdict(
            conditions::INDEXED,
            true,
            reason::LISTED,
            format!("{} objects{left_out}{newer}", version.objects),
        );
    }
    if let Some(words) = listing_failure(facts) {
        return verdict(conditions::INDEXED, false, reason::LISTING_FAILED, words);
    }
    let trouble = talking(facts).find_map(|worker| worker.origin_trouble.as_ref());
    match facts.listing {
        Listing::Running { .. } if trouble.is_some() => {
            let words = trouble
                .map(|trouble| origin_words(facts, &trouble.reason, &trouble.message, &trouble.source));
            verdict(conditions::INDEXED, false, reason::LISTING, words.unwrap_or_default())
        }
        Listing::Running { worker, .. } => {
            verdict(conditions::INDEXED, false, reason::LISTING, format!("worker {worker} lists the buckets"))
        }
        _ => verdict(
            conditions::INDEXED,
            false,
            reason::WAITING_FOR_WORKERS,
            "no worker can list the buckets yet",
        ),
    }
}

fn ready(facts: &Facts<'_>) -> Verdict {
    let say = |holds: bool, reason, message: String| verdict(conditions::READY, holds, reason, message);
    let wanted = facts.spec.workers.replicas;
    let serving = serving(facts);
    if let Some(blocked) = facts.blocked {
        return say(false, blocked.reason, blocked.message.clone());
    }
    if serving > 0 && facts.is_bound {
        return say(true, reason::SERVING, format!("{serving} of {wanted} workers serve"));
    }
    if serving > 0 {
        return say(false, reason::WAITING_FOR_VOLUME, "the claim is not bound to its volume yet".to_owned());
    }
    if wanted == 0 && facts.replicas == 0 {
        return say(false, reason::NO_WORKERS, "spec.workers.replicas is 0: scale to 1 or more".to_owned());
    }
    if let Some(trouble) = facts.trouble {
        return say(false, trouble.reason, trouble.message.clone());
    }
    let refused = facts.seen.values().find_map(|seen| match &seen.trouble {
        Some(seen::Trouble::KeyRefused(why)) => Some((&seen.name, why)),
        Some(seen::Trouble::Unreachable(_)) | None => None,
    });
    if let Some((worker, why)) = refused {
        let secret = format!("{}/{}", facts.owner.namespace, names::control_secret(&facts.owner.name));
        let cure = format!("delete secret {secret} and the pod, both are made anew");
        return say(false, reason::KEY_REFUSED, format!("worker {worker}: {why}: {cure}"));
    }
    let talking = talking(facts).count();
    if talking == 0 && !facts.is_valid {
        let why = "no workers are made: the spec is not accepted, see condition Accepted";
        return say(false, reason::WAITING_FOR_WORKERS, why.to_owned());
    }
    if talking == 0 {
        return say(false, reason::WAITING_FOR_WORKERS, format!("0 of {wanted} workers run"));
    }
    if facts.version.is_none() {
        let why = listing_failure(facts).unwrap_or_else(|| "there is no version yet".to_owned());
        return say(false, reason::WAITING_FOR_INDEX, why);
    }
    let complaint = facts.seen.values().find_map(|seen| seen.complaint.clone());
    let why = listing_failure(facts).or(complaint).map(|why| format!(": {why}")).unwrap_or_default();
    say(false, reason::WAITING_FOR_INDEX, format!("0 of {wanted} workers have the index{why}"))
}

fn warm(facts: &Facts<'_>, warm_up: Option<&WarmUp>) -> Verdict {
    let say = |holds: Holds, reason, message: String| verdict(conditions::WARM, holds, reason, message);
    let Some(warm_up) = warm_up else {
        return say(Holds::False, reason::WAITING_FOR_INDEX, "there is no version yet".into());
    };
    if talking(facts).next().is_none() {
        return say(Holds::Unknown, reason::WAITING_FOR_WORKERS, "no worker says what it holds".into());
    }
    let WarmUp { phase, bytes_done: _, bytes_total, failed, failures: _ } = warm_up;
    match phase {
        Phase::Idle | Phase::Stopped if facts.spec.warm_up.when == WarmUpWhen::Never => {
            say(Holds::False, reason::NOT_ASKED_FOR, "spec.warmUp.when is Never".into())
        }
        // No number that moves: a condition says what is so, and the status has the numbers.
        Phase::Idle | Phase::Running | Phase::Stopped => {
            say(Holds::False, reason::WARMING, format!("{bytes_total} bytes are to be loaded"))
        }
        Phase::Full => {
            say(Holds::False, reason::CACHE_TOO_SMALL, "the caches are full: raise quotas or replicas".into())
        }
        Phase::Done if *failed > 0 => {
            say(Holds::False, reason::OBJECTS_FAILED, format!("{failed} objects could not be loaded"))
        }
        Phase::Done => say(Holds::True, reason::WARMED, format!("{bytes_total} bytes")),
    }
}

fn degraded(facts: &Facts<'_>) -> Verdict {
    let say = |holds: bool, reason, message: String| verdict(conditions::DEGRADED, holds, reason, message);
    if let Some(trouble) = talking(facts).find_map(|worker| worker.origin_trouble.as_ref()) {
        let words = origin_words(facts, &trouble.reason, &trouble.message, &trouble.source);
        return say(true, reason::ORIGIN_UNAVAILABLE, words);
    }
    let lost = degraded::lost_objects(talking(facts));
    if lost > 0 {
        let kinds = degraded::kinds(talking(facts));
        let why = degraded::kinds_text(&kinds);
        let reason = conditions::of_lost_objects(kinds);
        let cure = match reason {
            reason::OBJECTS_CHANGED => format!("list again by annotation {}", names::REFRESH_ANNOTATION),
            _ => "permit or restore them in the bucket".to_owned(),
        };
        let text = format!("{lost} objects cannot be read from the bucket as listed{why}; {cure}");
        return say(true, reason, text);
    }
    let broken = degraded::broken_stores(talking(facts));
    if !broken.is_empty() {
        return say(
            true,
            reason::STORE_FAILED,
            format!("workers {} cannot write their tiers", broken.join(", ")),
        );
    }
    if facts.version.is_some()
        && !facts.is_current
        && let Some(words) = listing_failure(facts)
    {
        return say(true, reason::ORIGIN_UNAVAILABLE, format!("the version is an earlier one: {words}"));
    }
    match facts.roll {
        Roll::Pending { old } => {
            let text = format!(
                "{old} workers run with older settings, and their caches would go with their pods: annotate the Dataset with {}=<anything new> to restart them",
                names::ROLL_ANNOTATION
            );
            return say(true, reason::ROLL_PENDING, text);
        }
        Roll::Delete { .. } | Roll::Wait { .. } => {
            return say(true, reason::ROLLING, "workers are restarted one at a time".to_owned());
        }
        Roll::None => {}
    }
    let (serving, wanted) = (serving(facts), usize::try_from(facts.spec.workers.replicas).unwrap_or(0));
    if serving > 0 && serving < wanted {
        let why = facts.trouble.map(|trouble| format!(": {}", trouble.message)).unwrap_or_default();
        return say(true, reason::WORKERS_MISSING, format!("{serving} of {wanted} workers serve{why}"));
    }
    say(false, reason::HEALTHY, String::new())
}
