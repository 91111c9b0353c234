//! What do the rounds of a comparison say, and how sure is it?
//!
//! Everything is by order statistics: no assumption on how the noise of a shared machine is distributed.

/// Share of the cases in which the interval of [`median_interval`] has to hold the true median.
const CONFIDENCE: f64 = 0.90;

/// The median; of an even number of values the mean of the middle two. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Distance between the quartiles as a share of the median: 0.10 is 10 %. 0 with fewer than three values.
pub fn spread(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let (Some(middle), 3..) = (median(values), sorted.len()) else { return 0.0 };
    if middle == 0.0 {
        return 0.0;
    }
    (quantile(&sorted, 0.75) - quantile(&sorted, 0.25)) / middle.abs()
}

/// The narrowest pair of order statistics, as far from the one end as from the other, that holds the true median in 90 %
/// of the cases: the lowest but one and the highest but one of 9 values, the fourth from each end of 15.
///
/// With fewer than five values no pair does; the lowest and the highest are returned. `None` without values.
pub fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values);
    let cut = (1..=sorted.len() / 2)
        .take_while(|cut| coverage(sorted.len(), *cut) >= CONFIDENCE)
        .last()
        .unwrap_or(1);
    Some((*sorted.get(cut - 1)?, *sorted.get(sorted.len() - cut)?))
}

/// How sure it is that the median lies between the `cut`th lowest and the `cut`th highest of `count` values: each value
/// is on either side of it with probability one half.
fn coverage(count: usize, cut: usize) -> f64 {
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut tail = 0.0;
    for k in 0..cut {
        tail += term;
        term *= (count - k) as f64 / (k + 1) as f64;
    }
    1.0 - 2.0 * tail
}

/// The value at `share` of the way through sorted values, between neighbours by proportion.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let (low, high) = (position.floor() as usize, position.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * position.fract()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_to(count: u32) -> Vec<f64> {
        (1..=count).rev().map(f64::from).collect()
    }

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        // From tables: 9 values, 2nd to 8th, 96.1 %; 15 values, 4th to 12th, 96.5 %; 5 values, all, 93.8 %.
        assert_eq!(median_interval(&one_to(9)), Some((2.0, 8.0)));
        assert_eq!(median_interval(&one_to(15)), Some((4.0, 12.0)));
        assert_eq!(median_interval(&one_to(5)), Some((1.0, 5.0)));
        assert_eq!(median_interval(&one_to(2)), Some((1.0, 2.0)));
        assert_eq!(median_interval(&[7.0]), Some((7.0, 7.0)));
        assert_eq!(median_interval(&[]), None);
        assert!((coverage(9, 2) - 0.9609).abs() < 1e-4 && (coverage(15, 4) - 0.9648).abs() < 1e-4);
    }

    #[test]
    fn the_interval_holds_the_median_as_often_as_promised() {
        // Deciles of a skewed distribution, drawn by a fixed linear congruence.
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            -(((state >> 11) as f64 + 1.0) / (1u64 << 53) as f64).ln()
        };
        let held = (0..10_000).filter(|_| {
            let values: Vec<f64> = (0..9).map(|_| draw()).collect();
            median_interval(&values).is_some_and(|(low, high)| (low..=high).contains(&std::f64::consts::LN_2))
        });
        let share = held.count() as f64 / 10_000.0;
        assert!((0.95..0.97).contains(&share), "{share}");
    }

    #[test]
    fn the_spread_is_that_of_the_quartiles() {
        assert_eq!(spread(&one_to(9)), 4.0 / 5.0);
        assert_eq!(spread(&[5.0, 5.0, 5.0, 50.0, 5.0]), 0.0);
        assert_eq!(spread(&[1.0, 2.0]), 0.0);
    }
}
