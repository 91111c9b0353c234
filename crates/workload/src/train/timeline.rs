//! How did the time of the accelerators split, second by second?

use std::time::Duration;

use serde::Serialize;

use super::au::StepTimes;

/// More points than a plot has pixels for are joined in pairs.
const MAX_POINTS: usize = 240;

/// The finest width of a point: steps of most profiles are shorter.
const FINEST: Duration = Duration::from_millis(500);

/// What ranks did in one piece of time, in seconds summed over the ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Point {
    /// Waited for data.
    pub wait: f64,
    /// Computed.
    pub compute: f64,
    /// Waited for other ranks.
    pub barrier: f64,
}

/// One of the numbers of a point.
type Part = fn(&mut Point) -> &mut f64;

/// Points of equal width, from the start of the job on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timeline {
    /// Width of a point, seconds.
    pub width_seconds: f64,
    /// The points.
    pub points: Vec<Point>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { width_seconds: FINEST.as_secs_f64(), points: Vec::new() }
    }
}

impl Timeline {
    /// Adds a step that ended so long after the start of the job; its parts come one after the other.
    pub fn add(&mut self, at: Duration, step: StepTimes) {
        let StepTimes { wait, compute, barrier } = step;
        let mut end = at.as_secs_f64();
        while end / self.width_seconds >= MAX_POINTS as f64 {
            self.halve();
        }
        let parts: [(Duration, Part); 3] = [
            (barrier, |point| &mut point.barrier),
            (compute, |point| &mut point.compute),
            (wait, |point| &mut point.wait),
        ];
        for (length, part) in parts {
            let start = (end - length.as_secs_f64()).max(0.0);
            self.spread(start, end, part);
            end = start;
        }
    }

    /// Adds a piece of time to the points that it touches.
    fn spread(&mut self, start: f64, end: f64, part: Part) {
        let index = |at: f64| (at / self.width_seconds) as usize;
        let (first, last) = (index(start), index(end));
        if last >= self.points.len() {
            self.points.resize(last + 1, Point::default());
        }
        for number in first..=last {
            let (from, to) = (number as f64 * self.width_seconds, (number + 1) as f64 * self.width_seconds);
            *part(&mut self.points[number]) += (end.min(to) - start.max(from)).max(0.0);
        }
    }

    /// Adds another rank's.
    pub fn merge(&mut self, mut other: Self) {
        while self.width_seconds < other.width_seconds {
            self.halve();
        }
        while other.width_seconds < self.width_seconds {
            other.halve();
        }
        if other.points.len() > self.points.len() {
            self.points.resize(other.points.len(), Point::default());
        }
        for (point, other) in self.points.iter_mut().zip(other.points) {
            point.join(other);
        }
    }

    /// Joins neighbours.
    fn halve(&mut self) {
        self.width_seconds *= 2.0;
        self.points = self
            .points
            .chunks(2)
            .map(|pair| {
                let mut joined = Point::default();
                pair.iter().for_each(|point| joined.join(*point));
                joined
            })
            .collect();
    }
}

impl Point {
    fn join(&mut self, other: Self) {
        let Self { wait, compute, barrier } = other;
        self.wait += wait;
        self.compute += compute;
        self.barrier += barrier;
    }

    /// Share that was computed; `None` where no step ended.
    pub fn utilization(&self) -> Option<f64> {
        let all = self.wait + self.compute + self.barrier;
        (all > 0.0).then(|| self.compute / all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(wait: u64, compute: u64) -> StepTimes {
        let ms = Duration::from_millis;
        StepTimes { wait: ms(wait), compute: ms(compute), barrier: Duration::ZERO }
    }

    #[test]
    fn a_step_counts_where_its_time_passed() {
        let mut timeline = Timeline::default();
        // 0.3 s wait, 0.9 s compute, in points of 0.5 s: 0.3 + 0.2, 0.5, 0.2.
        timeline.add(Duration::from_millis(1_200), step(300, 900));
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 1e-9;
        let [first, second, third] = timeline.points.as_slice() else { panic!("{timeline:?}") };
        assert!(near(first.wait, 0.3) && near(first.compute, 0.2), "{timeline:?}");
        assert!(near(second.compute, 0.5) && near(third.compute, 0.2) && third.wait == 0.0, "{timeline:?}");
    }

    #[test]
    fn a_long_job_keeps_few_points_and_all_its_time() {
        let (mut one, mut other) = (Timeline::default(), Timeline::default());
        for second in 0..3_600 {
            one.add(Duration::from_secs(second + 1), step(250, 750));
        }
        other.add(Duration::from_secs(1), step(0, 500));
        other.merge(one);
        assert!(other.points.len() <= MAX_POINTS, "{}", other.points.len());
        let sum: f64 = other.points.iter().map(|point| point.compute).sum();
        assert!((sum - (2_700.0 + 0.5)).abs() < 1e-6, "{sum}");
        assert!((other.points[10].utilization().unwrap() - 0.75).abs() < 1e-9);
        assert_eq!(Point::default().utilization(), None);
    }
}
