//! How does a pod read a dataset, and were the bytes right?

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::bucket::Contents;
use super::namespace::Namespace;

/// Prints the SHA-256 of each file below `/data`.
pub const SUM_ALL: &str = "cd /data && find . -type f | sort | xargs sha256sum";

/// Where it is mounted, in an annotation: Dataset `data` at `/data`.
pub const AT_DATA: &str = "data=/data";

/// A pod that runs a script of a shell once; the script stands in an environment variable.
pub fn pod(name: &str, annotation: &str, node: Option<&str>, script: &str) -> String {
    let node =
        node.map(|node| format!("  nodeSelector: {{kubernetes.io/hostname: {node}}}\n")).unwrap_or_default();
    let spec = container(script, "  ");
    let annotations = if annotation.is_empty() {
        String::new()
    } else {
        format!("  annotations: {{millrace.dev/dataset: \"{annotation}\"}}\n")
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n{annotations}spec:\n  restartPolicy: Never\n{node}{spec}"
    )
}

/// A Job whose pod runs a script of a shell once.
pub fn job(name: &str, annotation: &str, script: &str) -> String {
    let spec = container(script, "      ");
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  backoffLimit: 0\n  template:\n    metadata:\n      \
         annotations: {{millrace.dev/dataset: \"{annotation}\"}}\n    spec:\n      restartPolicy: Never\n{spec}"
    )
}

fn container(script: &str, indent: &str) -> String {
    let script = serde_json::to_string(script).expect("text is JSON");
    let lines = [
        "terminationGracePeriodSeconds: 1".to_owned(),
        "securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}"
            .to_owned(),
        "containers:".to_owned(),
        "- name: reader".to_owned(),
        "  image: registry.test/shell:1".to_owned(),
        "  command: [/bin/sh, -c, 'eval \"$SCRIPT\"']".to_owned(),
        format!("  env: [{{name: SCRIPT, value: {script}}}]"),
        "  securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}".to_owned(),
    ];
    lines.iter().map(|line| format!("{indent}{line}\n")).collect()
}

/// Fails where the output of [`SUM_ALL`] is not what the bucket has.
pub fn check_sums(output: &str, contents: &Contents) {
    let found: BTreeMap<String, String> = output
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(sum, path)| (path.trim_start_matches("./").to_owned(), sum.to_owned()))
        .collect();
    let wanted = contents.sums();
    let wrong: Vec<&String> = wanted.keys().filter(|key| found.get(*key) != wanted.get(*key)).collect();
    assert!(wrong.is_empty(), "missing or wrong: {wrong:?} in {output}");
    assert_eq!(found.len(), wanted.len(), "more files than objects: {output}");
}

/// A pod that reads all files of `/data` again and again past the kernel's cache, and compares each byte. It says how many
/// rounds it has made, and ends at the first error.
pub struct EndlessReader<'a> {
    namespace: &'a Namespace<'a>,
    pod: String,
}

impl<'a> EndlessReader<'a> {
    /// Starts it; returns once it has read a whole round.
    pub fn start(namespace: &'a Namespace<'a>, pod: &str, node: Option<&str>, contents: &Contents) -> Self {
        let sums: String = contents.sums().iter().map(|(key, sum)| format!("{sum} {key}\n")).collect();
        let script = format!(
            r#"cat > /tmp/sums <<'END'
{sums}END
cd /data; round=0
while :; do
  while read -r sum key; do
    found=$( (dd if="$key" iflag=direct bs=1M 2>/tmp/error || echo failed) | sha256sum)
    [ "${{found%% *}}" = "$sum" ] || {{ echo "WRONG $key in round $round: $(cat /tmp/error)"; exit 1; }}
  done < /tmp/sums
  round=$((round + 1)); echo "round $round"
done"#
        );
        namespace.pod_of_a_controller(pod, AT_DATA, node, &script);
        let reader = Self { namespace, pod: pod.to_owned() };
        namespace.wait_until_running(pod, super::namespace::RUN);
        reader.wait_for_rounds(1, super::namespace::RUN);
        reader
    }

    /// How many rounds it has made, where that can be found out now: away for a moment may be the API server, the kubelet or the
    /// container. Fails the test where it has met an error.
    fn rounds(&self) -> Result<usize, String> {
        let log = self.namespace.cluster.objects.log(&self.namespace.name, &self.pod, None)?;
        assert!(!log.contains("WRONG"), "reader {}: {log}", self.pod);
        Ok(log.lines().filter(|line| line.starts_with("round ")).count())
    }

    /// Waits for so many rounds more than it has made.
    pub fn wait_for_rounds(&self, more: usize, within: Duration) {
        let started = Instant::now();
        let mut wanted = None;
        loop {
            let found = self.rounds();
            // Counted from the first answer: rounds that were made before are none of these.
            if let Ok(found) = found
                && found >= *wanted.get_or_insert(found + more)
            {
                return;
            }
            assert!(
                started.elapsed() < within,
                "reader {} has made {found:?} rounds, not {wanted:?}, within {within:?}",
                self.pod
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
