//! What can a user do, by the reason of a Dataset's condition? Pure.
//!
//! The message of a condition says what is so; this says what to do where the message alone may not.

use millrace_api::dataset::conditions::reason;

/// The cure, where there is one.
pub fn cure(reason: &str) -> Option<&'static str> {
    match reason {
        reason::INVALID => Some("correct the field that the message names and apply the Dataset again"),
        reason::LISTING_FAILED => Some(
            "correct bucket, endpoint, region or credentials as the message says; it is tried again by itself",
        ),
        reason::ORIGIN_UNAVAILABLE => Some(
            "see that the bucket's endpoint can be reached from the workers' pods; reads go on by themselves then",
        ),
        reason::OBJECTS_CHANGED => Some(
            "list the bucket again: kubectl annotate dataset NAME millrace.dev/refresh=$(date +%s) --overwrite",
        ),
        reason::OBJECTS_UNREADABLE => Some(
            "permit s3:GetObject on them, or restore those that are archived; they are tried again within 30 s",
        ),
        reason::CACHE_TOO_SMALL => {
            Some("raise spec.workers.replicas or the quotas of spec.workers.cache.tiers, or warm fewer paths")
        }
        reason::OBJECTS_FAILED => Some("status.warmUp.failures names the first of them with the reason"),
        reason::STORE_FAILED => Some("see the disk that the message names; the worker's log has more"),
        reason::NAME_CONFLICT => {
            Some("rename or delete the object that the message names, or give the Dataset another name")
        }
        reason::QUOTA_EXCEEDED => {
            Some("raise the namespace's ResourceQuota, or ask for fewer or smaller workers")
        }
        reason::LIMIT_RANGE => Some("set spec.workers.template.resources within the namespace's LimitRange"),
        reason::POD_SECURITY => Some(
            "see the namespace's label pod-security.kubernetes.io/enforce; workers need no more than `restricted`",
        ),
        reason::REFUSED => Some(
            "the message has the API server's own words: what refuses the workers' pods must let them pass",
        ),
        reason::UNSCHEDULABLE => {
            Some("make room on nodes, or change spec.workers.template (resources, nodeSelector, tolerations)")
        }
        reason::IMAGE_PULL => Some(
            "see that nodes can pull the image (image.registry and image.tag of the chart); for a private registry name the Secret in \
             spec.workers.template.imagePullSecrets",
        ),
        reason::WORKER_CRASHES => {
            Some("see the log: kubectl logs -l app.kubernetes.io/component=cache-worker --previous")
        }
        reason::KEY_REFUSED => {
            Some("delete the Secret that the message names, and the worker's pod: both are made anew")
        }
        reason::NO_WORKERS => Some("kubectl scale dataset NAME --replicas=1"),
        reason::ROLL_PENDING => Some(
            "the workers' cache would be lost; say that it may: kubectl annotate dataset NAME millrace.dev/roll=$(date +%s) --overwrite",
        ),
        reason::WORKERS_MISSING => Some(
            "reads go on; see kubectl get pods -l app.kubernetes.io/component=cache-worker where the message does not say what keeps them",
        ),
        reason::WAITING_FOR_PODS => Some("the pods that the message names must end first"),
        _ => None,
    }
}

/// Whether a reason means that something else is waited for, the user's word perhaps, and nothing is wrong by itself.
pub fn is_progress(reason: &str) -> bool {
    [
        reason::LISTING,
        reason::WAITING_FOR_WORKERS,
        reason::WAITING_FOR_INDEX,
        reason::WAITING_FOR_VOLUME,
        reason::WARMING,
        reason::ROLLING,
        reason::ROLL_PENDING,
        reason::DELETING,
        reason::REMOVING,
    ]
    .contains(&reason)
}
