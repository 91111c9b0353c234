//! How do the counts of a process that ended and of its successor make one count that never falls?

use prometheus::proto::{Metric, MetricFamily, MetricType};

/// What outlives a process: counters and histograms. A gauge says how things are, and they are not any more.
pub fn counts(families: &[MetricFamily]) -> Vec<MetricFamily> {
    families.iter().filter(|family| family.get_field_type() != MetricType::GAUGE).cloned().collect()
}

/// Adds what former processes counted to what the present one says. A family or a series that only they had is kept.
pub fn add(former: &[MetricFamily], mut now: Vec<MetricFamily>) -> Vec<MetricFamily> {
    for family in former {
        let known = now
            .iter_mut()
            .find(|known| known.name() == family.name() && known.get_field_type() == family.get_field_type());
        let Some(known) = known else {
            now.push(family.clone());
            continue;
        };
        for metric in family.get_metric() {
            match known.mut_metric().iter_mut().find(|known| known.get_label() == metric.get_label()) {
                Some(known) => raise(known, metric, family.get_field_type()),
                None => known.mut_metric().push(metric.clone()),
            }
        }
    }
    now
}

fn raise(metric: &mut Metric, by: &Metric, kind: MetricType) {
    if kind == MetricType::COUNTER {
        let mut counter = metric.get_counter().clone();
        counter.set_value(counter.get_value() + by.get_counter().get_value());
        metric.set_counter(counter);
        return;
    }
    let (mut sum, former) = (metric.get_histogram().clone(), by.get_histogram());
    let mut buckets = sum.get_bucket().to_vec();
    // The same program has the same buckets; those of another one cannot be added.
    let bounds = |buckets: &[prometheus::proto::Bucket]| -> Vec<u64> {
        buckets.iter().map(|bucket| bucket.upper_bound().to_bits()).collect()
    };
    if bounds(&buckets) != bounds(former.get_bucket()) {
        return;
    }
    for (bucket, former) in buckets.iter_mut().zip(former.get_bucket()) {
        bucket.set_cumulative_count(bucket.cumulative_count() + former.cumulative_count());
    }
    sum.set_bucket(buckets);
    sum.set_sample_count(sum.get_sample_count() + former.get_sample_count());
    sum.set_sample_sum(sum.get_sample_sum() + former.get_sample_sum());
    metric.set_histogram(sum);
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::super::text::parse;
    use super::*;

    #[test]
    fn counters_and_histograms_add_up_and_gauges_are_those_of_now() {
        let read = |text: &str| parse(text, |_| true).unwrap();
        let former = read(concat!(
            "# TYPE a counter\na{by=\"x\"} 5\na{by=\"y\"} 1\n# TYPE g gauge\ng 9\n",
            "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 4\nh_count 2\n",
            "# TYPE old counter\nold 3\n",
        ));
        let now = read(concat!(
            "# TYPE a counter\na{by=\"x\"} 2\na{by=\"z\"} 1\n# TYPE g gauge\ng 1\n",
            "# TYPE h histogram\nh_bucket{le=\"1\"} 0\nh_bucket{le=\"+Inf\"} 1\nh_sum 5\nh_count 1\n",
        ));
        let total = add(&counts(&former), now);
        let wanted = concat!(
            "# TYPE a counter\na{by=\"x\"} 7\na{by=\"z\"} 1\na{by=\"y\"} 1\n# TYPE g gauge\ng 1\n",
            "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 3\nh_sum 9\nh_count 3\n",
            "# TYPE old counter\nold 3\n",
        );
        assert_eq!(TextEncoder::new().encode_to_string(&total).unwrap(), wanted);
    }
}
