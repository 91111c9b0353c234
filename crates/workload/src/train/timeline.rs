//! How did the time of the accelerators split, second by second?

use std::time::Duration;

use serde::Serialize;

use super::au::StepTimes;

/// More points than a plot has pixels for are joined in pairs.
const MAX_POINTS: usize = 240;

/// The finest width of a point: steps of most profiles are shorter.
const FINEST: Duration = Duration::from_millis(500);

/// What ranks did in one piece of time, in seconds summed over the ranks; a step counts where it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Point {
    /// Waited for data.
    pub wait: f64,
    /// Computed.
    pub compute: f64,
    /// Waited for other ranks.
    pub barrier: f64,
}

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
    /// Adds a step that ended so long after the start of the job.
    pub fn add(&mut self, at: Duration, step: StepTimes) {
        let position = |timeline: &Self| (at.as_secs_f64() / timeline.width_seconds) as usize;
        while position(self) >= MAX_POINTS {
            self.halve();
        }
        let index = position(self);
        if index >= self.points.len() {
            self.points.resize(index + 1, Point::default());
        }
        let StepTimes { wait, compute, barrier } = step;
        self.points[index].join(Point {
            wait: wait.as_secs_f64(),
            compute: compute.as_secs_f64(),
            barrier: barrier.as_secs_f64(),
        });
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
    fn a_long_job_keeps_few_points_and_all_its_time() {
        let (mut one, mut other) = (Timeline::default(), Timeline::default());
        for second in 0..3_600 {
            one.add(Duration::from_secs(second), step(250, 750));
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
