//! In which rows does somebody else win?

use millrace_workload::plot::number_text;

use super::cases::Better;
use super::document::{Document, Figures};
use crate::rivals::{Contender, Millrace};

/// A sentence for each row of a case in which another than Millrace has the best figure.
pub fn losses(document: &Document) -> Vec<String> {
    let Some(ours) = document.contenders.iter().find(|figures| figures.name == Millrace.name()) else {
        return Vec::new();
    };
    let others: Vec<&Figures> =
        document.contenders.iter().filter(|figures| figures.name != Millrace.name()).collect();
    let mut losses: Vec<String> = speed(document, ours, &others).into_iter().collect();
    let item = &document.item;
    let memory = resource(ours, &others, "MiB of anonymous memory", |figures| figures.memory_mib);
    let requests =
        resource(ours, &others, &format!("S3 requests a {item}"), |figures| figures.requests_per_item);
    let bytes =
        resource(ours, &others, "bytes out of S3 for each byte read", |figures| figures.bytes_per_byte);
    losses.extend([memory, requests, bytes].into_iter().flatten());
    losses
}

/// Whether one figure is better than another.
pub fn is_better(better: Better, one: f64, other: f64) -> bool {
    match better {
        Better::Higher => one > other,
        Better::Lower => one < other,
    }
}

fn speed(document: &Document, ours: &Figures, others: &[&Figures]) -> Option<String> {
    let winners = others.iter().filter(|other| is_better(document.better, other.median, ours.median));
    let text = |other: &&&Figures| {
        let (low, high) = other.interval;
        let ratio = match document.better {
            Better::Higher => format!("Millrace reaches {:.2} of it", ours.median / other.median),
            Better::Lower => format!("Millrace takes {:.1} times as long", ours.median / other.median),
        };
        let is_apart = high < ours.interval.0 || low > ours.interval.1;
        let doubt = if is_apart { "" } else { ", the intervals overlap" };
        format!("{} has {} ({ratio}{doubt})", other.name, number_text(other.median))
    };
    let texts: Vec<String> = winners.map(|winner| text(&winner)).collect();
    let (own, unit) = (number_text(ours.median), &document.unit);
    (!texts.is_empty()).then(|| format!("{}; Millrace {own} {unit}.", texts.join(", ")))
}

/// Where less is better, and the figure is rounded to what the tables show.
fn resource(
    ours: &Figures,
    others: &[&Figures],
    of_what: &str,
    figure: impl Fn(&Figures) -> Option<f64>,
) -> Option<String> {
    let shown = |figures: &Figures| figure(figures).map(|value| (value * 100.0).round() / 100.0);
    let own = shown(ours)?;
    let lower =
        others.iter().filter_map(|other| Some((other, shown(other)?))).filter(|(_, value)| *value < own);
    let texts: Vec<String> =
        lower.map(|(other, value)| format!("{} needs {}", other.name, two(value))).collect();
    (!texts.is_empty()).then(|| format!("{} {of_what}; Millrace {}.", texts.join(", "), two(own)))
}

/// With two digits after the point where they say something.
pub fn two(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::document::tests::{document, figures};

    #[test]
    fn every_row_that_another_wins_is_said() {
        let mut ours = figures("Millrace", 80.0);
        let (mut fast, mut small) = (figures("ext4", 100.0), figures("s3fs", 20.0));
        (ours.memory_mib, small.memory_mib) = (Some(90.0), Some(12.0));
        (ours.requests_per_item, small.requests_per_item) = (Some(1.0), Some(3.0));
        (ours.bytes_per_byte, small.bytes_per_byte) = (Some(1.0), Some(1.001));
        fast.interval = (70.0, 101.0);
        let document = document(Better::Higher, vec![ours, fast, small]);
        assert_eq!(
            losses(&document),
            [
                "ext4 has 100 (Millrace reaches 0.80 of it, the intervals overlap); Millrace 80.0 files/s.",
                "s3fs needs 12.00 MiB of anonymous memory; Millrace 90.00.",
            ]
        );
    }

    #[test]
    fn less_is_more_where_it_is_a_time() {
        let contenders = vec![figures("Millrace", 12.0), figures("ext4", 0.1), figures("s3fs", 50.0)];
        let losses = losses(&document(Better::Lower, contenders));
        assert_eq!(losses, ["ext4 has 0.100 (Millrace takes 120.0 times as long); Millrace 12.0 files/s."]);
    }

    #[test]
    fn nothing_is_said_where_nobody_wins() {
        let contenders = vec![figures("Millrace", 12.0), figures("ext4", 12.0)];
        assert_eq!(losses(&document(Better::Higher, contenders)), [""; 0]);
    }
}
