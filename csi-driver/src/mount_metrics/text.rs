//! What does a text of metrics say? The part of Prometheus's text format that our own programs write.

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Why a text is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the metrics cannot be read")]
pub struct ParseText {
    /// Counted from 1.
    pub line: usize,
}

/// A line with a value.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

/// Reads counters, gauges and histograms whose names `is_wanted`. What is of another kind is left out.
///
/// # Errors
/// [`ParseText`] names the first line that is none of the format.
pub fn parse(text: &str, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<MetricFamily>, ParseText> {
    let mut families: Vec<MetricFamily> = Vec::new();
    let mut help = ("", String::new());
    // The family that the lines belong to; none where it is left out.
    let mut open: Option<MetricFamily> = None;
    for (at, line) in text.lines().enumerate() {
        let failed = || ParseText { line: at + 1 };
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').unwrap_or((rest, ""));
            help = (name, unescape(words).ok_or_else(failed)?);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(failed)?;
            families.extend(open.take());
            let kind = kind_of(kind).filter(|_| is_wanted(name));
            open = kind.map(|kind| {
                let mut family = MetricFamily::default();
                family.set_name(name.to_owned());
                family.set_field_type(kind);
                if help.0 == name {
                    family.set_help(std::mem::take(&mut help.1));
                }
                family
            });
        } else if !line.is_empty() && !line.starts_with('#') {
            let sample = sample(line).ok_or_else(failed)?;
            if let Some(family) = &mut open {
                add(family, sample).ok_or_else(failed)?;
            }
        }
    }
    families.extend(open);
    Ok(families)
}

fn kind_of(word: &str) -> Option<MetricType> {
    match word {
        "counter" => Some(MetricType::COUNTER),
        "gauge" => Some(MetricType::GAUGE),
        "histogram" => Some(MetricType::HISTOGRAM),
        _ => None,
    }
}

/// Adds a line to the family that it stands below; none where it does not belong there.
fn add(family: &mut MetricFamily, sample: Sample<'_>) -> Option<()> {
    let Sample { name, mut labels, value } = sample;
    let suffix = name.strip_prefix(family.name())?.to_owned();
    let kind = family.get_field_type();
    if kind != MetricType::HISTOGRAM {
        if !suffix.is_empty() {
            return None;
        }
        let mut metric = Metric::from_label(pairs(labels));
        if kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        family.mut_metric().push(metric);
        return Some(());
    }
    let bound = labels.iter().position(|(name, _)| *name == "le").map(|at| labels.remove(at).1);
    let labels = pairs(labels);
    // The lines of one histogram follow each other.
    if family.get_metric().last().is_none_or(|last| last.get_label() != labels) {
        family.mut_metric().push(Metric::from_label(labels));
    }
    let metric = family.mut_metric().last_mut()?;
    let mut histogram: Histogram = metric.get_histogram().clone();
    match (suffix.as_str(), bound) {
        ("_sum", None) => histogram.set_sample_sum(value),
        // Whole numbers that were printed as such.
        ("_count", None) => histogram.set_sample_count(value as u64),
        ("_bucket", Some(bound)) => {
            let bound: f64 = bound.parse().ok()?;
            // The one without a bound is the count, and is written as such.
            if bound.is_finite() {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bound);
                bucket.set_cumulative_count(value as u64);
                let mut buckets = histogram.get_bucket().to_vec();
                buckets.push(bucket);
                histogram.set_bucket(buckets);
            }
        }
        _ => return None,
    }
    metric.set_histogram(histogram);
    Some(())
}

/// A label as the library has it.
pub fn pair(name: &str, value: String) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value);
    pair
}

fn pairs(labels: Vec<(&str, String)>) -> Vec<LabelPair> {
    labels.into_iter().map(|(name, value)| pair(name, value)).collect()
}

/// `name{label="value",...} value`, or without labels.
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, behind) = rest.split_once("=\"")?;
            let close = closing_quote(behind)?;
            labels.push((label, unescape(&behind[..close])?));
            rest = &behind[close + 1..];
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
        rest = &rest[1..];
    }
    // A time may follow the value; none of ours does.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some(Sample { name, labels, value })
}

/// Where the quoted text ends.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })
}

fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next()? {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            },
            plain => plain,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

    use super::*;

    #[test]
    fn what_the_library_writes_is_read_back_unchanged() {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("a_total", "A \\ help.\nTwo lines."), &["by"]).unwrap();
        counter.with_label_values(&["quote \" slash \\ line \n, brace }"]).inc_by(7);
        counter.with_label_values(&[""]).inc();
        let gauge = IntGauge::new("b", "b").unwrap();
        gauge.set(-3);
        let seconds = HistogramOpts::new("c_seconds", "c").buckets(vec![0.5, 2.0]);
        let seconds = HistogramVec::new(seconds, &["by"]).unwrap();
        seconds.with_label_values(&["x"]).observe(1.0);
        seconds.with_label_values(&["y"]).observe(9.0);
        registry.register(Box::new(counter)).unwrap();
        registry.register(Box::new(gauge)).unwrap();
        registry.register(Box::new(seconds)).unwrap();
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let read = parse(&text, |_| true).unwrap();
        assert_eq!(TextEncoder::new().encode_to_string(&read).unwrap(), text);
        let some = parse(&text, |name| name == "b").unwrap();
        assert_eq!(some.len(), 1);
    }

    #[test]
    fn a_line_of_another_form_is_named() {
        for (text, line) in [
            ("# TYPE a counter\na 1\na{x=\"1} 2\n", 3),
            ("# TYPE a counter\na\n", 2),
            ("# TYPE a gauge\nb 1\n", 2),
            ("# TYPE a gauge\na_sum 1\n", 2),
            ("# TYPE a histogram\na_bucket 1\n", 2),
            ("# TYPE a gauge\na{x=\"\\t\"} 1\n", 2),
        ] {
            assert_eq!(parse(text, |_| true).unwrap_err(), ParseText { line }, "{text}");
        }
    }
}
