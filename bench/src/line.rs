//! What is said of a case: its numbers, and whether they meet its bar?

use serde::Serialize;

use crate::stats::{median, median_interval, spread};

/// Rounds of a comparison; with more spread than [`WIDE`] there are [`MORE_ROUNDS`].
pub const ROUNDS: usize = 9;

/// Rounds where the machine is noisy.
pub const MORE_ROUNDS: usize = 15;

/// Spread from which on more rounds are worth their time.
pub const WIDE: f64 = 0.10;

/// Which figure of a round a bar is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// Ours divided by the baseline.
    Ratio,
    /// Ours minus the baseline, in the unit of the case.
    Above,
    /// Ours alone, in the unit of the case.
    Ours,
}

/// What has to be reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bar {
    /// Not less than this.
    AtLeast(Figure, f64),
    /// Not more than this.
    AtMost(Figure, f64),
    /// Not farther than the second from the first.
    Within(Figure, f64, f64),
    /// No bar: the numbers are told.
    Reported,
}

/// Ours and the baseline of one round, in the unit of the case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// Ours.
    pub ours: f64,
    /// What it is compared with, where it is compared.
    pub baseline: Option<f64>,
}

/// All that was measured in one case.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Name of the case.
    pub case: String,
    /// Unit of ours and baseline.
    pub unit: &'static str,
    /// The bar.
    pub bar: Bar,
    /// One pair a round.
    pub pairs: Vec<Pair>,
    /// What belongs beside the numbers.
    pub notes: Vec<String>,
}

/// A line of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Name of the case.
    pub case: String,
    /// Median of ours.
    pub ours: Option<f64>,
    /// Median of the baseline.
    pub baseline: Option<f64>,
    /// Median of the rounds' ratios.
    pub ratio: Option<f64>,
    /// Unit of ours and baseline.
    pub unit: &'static str,
    /// How many rounds.
    pub rounds: usize,
    /// Distance of the quartiles of the figure that the bar is about, as a share of its median.
    pub spread: f64,
    /// 90 % interval of the median of that figure.
    pub interval: Option<(f64, f64)>,
    /// The bar in words.
    pub bar: String,
    /// Whether the unfavourable end of the interval meets the bar; `None` where there is none.
    pub met: Option<bool>,
    /// What belongs beside the numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Measured {
    /// Works the rounds out.
    pub fn line(&self) -> Line {
        let figures = figures(self.bar.figure(), &self.pairs);
        let interval = median_interval(&figures);
        let round = |value: f64| (value * 1e4).round() / 1e4;
        let of = |values: Vec<f64>| median(&values).map(round);
        Line {
            case: self.case.clone(),
            ours: of(self.pairs.iter().map(|pair| pair.ours).collect()),
            baseline: of(self.pairs.iter().filter_map(|pair| pair.baseline).collect()),
            ratio: of(figures_of_ratio(&self.pairs)),
            unit: self.unit,
            rounds: self.pairs.len(),
            spread: round(spread(&figures)),
            interval: interval.map(|(low, high)| (round(low), round(high))),
            bar: self.bar.words(self.unit),
            met: interval.and_then(|interval| self.bar.is_met(interval)),
            notes: self.notes.clone(),
        }
    }
}

/// How many rounds a case needs that has had these.
pub fn rounds_needed(bar: Bar, pairs: &[Pair]) -> usize {
    if pairs.len() >= ROUNDS && spread(&figures(bar.figure(), pairs)) > WIDE { MORE_ROUNDS } else { ROUNDS }
}

impl Bar {
    fn figure(self) -> Figure {
        match self {
            Bar::AtLeast(figure, _) | Bar::AtMost(figure, _) | Bar::Within(figure, ..) => figure,
            Bar::Reported => Figure::Ratio,
        }
    }

    fn is_met(self, (low, high): (f64, f64)) -> Option<bool> {
        match self {
            Bar::AtLeast(_, value) => Some(low >= value),
            Bar::AtMost(_, value) => Some(high <= value),
            Bar::Within(_, value, by) => Some(low >= value - by && high <= value + by),
            Bar::Reported => None,
        }
    }

    fn words(self, unit: &str) -> String {
        let name = |figure| match figure {
            Figure::Ratio => ("ratio", ""),
            Figure::Above => ("ours - baseline", unit),
            Figure::Ours => ("ours", unit),
        };
        let (sign, (name, unit), value) = match self {
            Bar::AtLeast(figure, value) => (">=", name(figure), value),
            Bar::AtMost(figure, value) => ("<=", name(figure), value),
            Bar::Within(figure, value, by) => {
                let (name, unit) = name(figure);
                return format!("{name} = {value} ± {by} {unit}").trim_end().to_owned();
            }
            Bar::Reported => return "reported".to_owned(),
        };
        format!("{name} {sign} {value} {unit}").trim_end().to_owned()
    }
}

fn figures(figure: Figure, pairs: &[Pair]) -> Vec<f64> {
    match figure {
        Figure::Ratio if pairs.iter().any(|pair| pair.baseline.is_some()) => figures_of_ratio(pairs),
        Figure::Above => {
            pairs.iter().filter_map(|pair| pair.baseline.map(|baseline| pair.ours - baseline)).collect()
        }
        Figure::Ratio | Figure::Ours => pairs.iter().map(|pair| pair.ours).collect(),
    }
}

fn figures_of_ratio(pairs: &[Pair]) -> Vec<f64> {
    let ratio =
        |pair: &Pair| pair.baseline.filter(|baseline| *baseline > 0.0).map(|baseline| pair.ours / baseline);
    pairs.iter().filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(bar: Bar, pairs: &[(f64, f64)]) -> Measured {
        let pairs = pairs.iter().map(|&(ours, baseline)| Pair { ours, baseline: Some(baseline) }).collect();
        Measured { case: "c".to_owned(), unit: "MB/s", bar, pairs, notes: Vec::new() }
    }

    fn around(ratio: f64, step: f64) -> Vec<(f64, f64)> {
        (0..9).map(|n| ((ratio + step * (f64::from(n) - 4.0)) * 400.0, 400.0)).collect()
    }

    #[test]
    fn a_bar_is_met_only_when_the_unfavourable_end_of_the_interval_meets_it() {
        let bar = Bar::AtLeast(Figure::Ratio, 0.92);
        assert_eq!(measured(bar, &around(0.95, 0.005)).line().met, Some(true));
        let line = measured(bar, &around(0.93, 0.005)).line();
        assert_eq!((line.met, line.ratio), (Some(false), Some(0.93)));
        assert_eq!(line.interval, Some((0.915, 0.945)));
        let bar = Bar::AtMost(Figure::Ratio, 1.02);
        assert_eq!(measured(bar, &around(1.015, 0.001)).line().met, Some(true));
        assert_eq!(measured(bar, &around(1.018, 0.001)).line().met, Some(false));
    }

    #[test]
    fn the_other_figures_are_in_the_unit_of_the_case() {
        let pairs = vec![(36.0, 30.0); 9];
        let line = measured(Bar::AtMost(Figure::Above, 10.0), &pairs).line();
        assert_eq!((line.met, line.bar.as_str()), (Some(true), "ours - baseline <= 10 MB/s"));
        let line = measured(Bar::AtMost(Figure::Ours, 35.0), &pairs).line();
        assert_eq!((line.met, line.bar.as_str()), (Some(false), "ours <= 35 MB/s"));
        let within = |value| measured(Bar::Within(Figure::Ours, value, 2.0), &pairs).line();
        assert_eq!((within(35.0).met, within(35.0).bar.as_str()), (Some(true), "ours = 35 ± 2 MB/s"));
        assert_eq!((within(39.0).met, within(33.0).met), (Some(false), Some(false)));
        let line = measured(Bar::Reported, &pairs).line();
        assert_eq!((line.met, line.ratio), (None, Some(1.2)));
    }

    #[test]
    fn a_noisy_case_gets_more_rounds() {
        let bar = Bar::AtLeast(Figure::Ratio, 0.92);
        assert_eq!(rounds_needed(bar, &measured(bar, &around(1.0, 0.005)).pairs), ROUNDS);
        assert_eq!(rounds_needed(bar, &measured(bar, &around(1.0, 0.05)).pairs), MORE_ROUNDS);
        assert_eq!(rounds_needed(bar, &[]), ROUNDS);
    }

    #[test]
    fn a_line_has_the_fields_that_readers_of_the_results_expect() {
        let json = serde_json::to_value(measured(Bar::Reported, &[(1.0, 2.0)]).line()).unwrap();
        for field in ["case", "ours", "baseline", "ratio", "unit", "rounds", "spread", "bar", "met"] {
            assert!(json.get(field).is_some(), "{field}");
        }
    }
}
