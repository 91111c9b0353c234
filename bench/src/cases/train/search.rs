//! How many accelerators are kept busy: where does a figure that falls with their number cross its bar?

use anyhow::{Result, ensure};

/// The most that `millrace bench train` emulates.
pub const MOST: usize = 128;

/// Far more than a search needs whose figure falls.
const MOST_PROBES: usize = 24;

/// Where the bar is crossed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crossing {
    /// The largest number that reaches the bar, its neighbour not; 0 where one does not.
    pub whole: usize,
    /// The same with the part of the next one: where the line between the two figures is at the bar.
    pub exact: f64,
}

/// A number of accelerators and its figure.
type Probed = (usize, f64);

/// Looks for the crossing from `guess` on, by ever larger steps upwards until it is between two numbers, then between these.
///
/// # Errors
/// What a probe returns; where even [`MOST`] reach the bar, or the figure jumps about.
pub fn crossing(bar: f64, guess: usize, mut probe: impl FnMut(usize) -> Result<f64>) -> Result<Crossing> {
    let (mut low, mut high): (Option<Probed>, Option<Probed>) = (None, None);
    let mut at = guess.clamp(1, MOST);
    for probes in 0..MOST_PROBES {
        let figure = probe(at)?;
        if figure >= bar {
            low = Some((at, figure));
        } else {
            high = Some((at, figure));
        }
        at = match (low, high) {
            (Some(low), Some(high)) if high.0 - low.0 <= 1 => return Ok(between(bar, low, high)),
            (Some(low), Some(high)) if probes % 2 == 0 => low.0.midpoint(high.0),
            (Some(low), Some(high)) => sustained(bar, high).clamp(low.0 + 1, high.0 - 1),
            (None, Some((1, figure))) => return Ok(Crossing { whole: 0, exact: (figure / bar).max(0.0) }),
            (None, Some(high)) => sustained(bar, high).clamp(1, high.0 - 1),
            (Some((MOST, _)), None) => break,
            (Some(low), None) => (low.0 + (1 << probes.min(7))).min(MOST),
            (None, None) => break,
        };
    }
    ensure!(
        low.is_none_or(|(at, _)| at < MOST),
        "even {MOST} accelerators are kept busy: take larger samples"
    );
    anyhow::bail!("the figure does not fall with the number of accelerators: {low:?}, {high:?}")
}

/// What storage that is the bottleneck for so many sustains: then the figure is its rate divided by the demand.
fn sustained(bar: f64, (at, figure): Probed) -> usize {
    (at as f64 * figure / bar) as usize
}

fn between(bar: f64, low: Probed, high: Probed) -> Crossing {
    // `low` reaches the bar and `high` does not.
    let part = (low.1 - bar) / (low.1 - high.1);
    Crossing { whole: low.0, exact: low.0 as f64 + part }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Storage that feeds `rate` accelerators.
    fn search(rate: f64, guess: usize) -> (Crossing, usize) {
        let mut probes = 0;
        let found = crossing(0.9, guess, |ranks| {
            probes += 1;
            Ok((rate / ranks as f64).min(1.0))
        });
        (found.unwrap(), probes)
    }

    #[test]
    fn the_crossing_is_found_from_any_guess() {
        for rate in [1.0, 1.5, 3.7, 9.1, 21.0, 70.0, 110.0] {
            for guess in [1, 2, 5, 16, 40, 128] {
                let (found, probes) = search(rate, guess);
                assert_eq!(found.whole, (rate / 0.9) as usize, "{rate} from {guess}");
                assert!((found.exact - rate / 0.9).abs() < 0.3, "{rate} from {guess}: {found:?}");
                assert!(probes <= 14, "{rate} from {guess}: {probes}");
            }
        }
    }

    #[test]
    fn a_good_guess_takes_two_probes() {
        assert_eq!(search(9.1, 10).1, 2);
        assert_eq!(search(9.1, 11).1, 2);
    }

    #[test]
    fn less_than_one_is_a_part_of_one() {
        let (found, _) = search(0.45, 4);
        assert_eq!(found.whole, 0);
        assert!((found.exact - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_parts_of_a_number_are_told_apart() {
        let found = crossing(0.9, 7, |ranks| Ok(if ranks <= 7 { 0.95 } else { 0.85 })).unwrap();
        assert_eq!(found.whole, 7);
        assert!((found.exact - 7.5).abs() < 1e-9);
    }

    #[test]
    fn no_crossing_is_an_error() {
        let error = crossing(0.9, 100, |_| Ok(1.0)).unwrap_err().to_string();
        assert!(error.contains("128"), "{error}");
    }
}
