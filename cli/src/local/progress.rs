//! How does a user see that work goes on? Bars on a terminal, else a line every few seconds; on stderr.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, HumanCount, ProgressBar, ProgressStyle};
use millrace_control::warm_up::{Phase, WarmUp};

/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A rate of less than this is mostly the start.
const RATE_FROM_MS: u64 = 2000;

/// A time left that is longer says nothing but that it is long.
const LONGEST_LEFT_SECONDS: u64 = 100 * 3600;

/// How much of the past the rate is of.
const RATE_OF: Duration = Duration::from_secs(10);

/// Progress of one piece of work; the bar is taken away on drop.
#[derive(Debug)]
pub struct Progress {
    label: String,
    bar: Option<ProgressBar>,
    began: Instant,
    printed: Instant,
    rate: Rate,
}

impl Progress {
    /// Begins to show it.
    pub fn new(label: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_message(label.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        let now = Instant::now();
        Self { label: label.to_owned(), bar, began: now, printed: now, rate: Rate::default() }
    }

    /// Shows how far a listing is.
    pub fn listing(&mut self, objects: u64, bytes: u64) {
        self.rate.add(self.began.elapsed(), objects);
        let text = format!(
            "{}: {} objects, {}{}",
            self.label,
            HumanCount(objects),
            BinaryBytes(bytes),
            match self.rate.per_second() {
                0 => String::new(),
                rate => format!(", {} objects/s", HumanCount(rate)),
            }
        );
        self.show(text);
    }

    /// Shows how far a warm-up is.
    pub fn warm_up(&mut self, now: &WarmUp) {
        self.rate.add(self.began.elapsed(), now.bytes_done);
        let text = warm_up_text(now, self.rate.per_second());
        if let Some(bar) = &self.bar {
            if bar.length() != Some(now.bytes_total) && now.bytes_total > 0 {
                bar.set_length(now.bytes_total);
                // A template of ours; were it wrong, the bar would stay a spinner.
                if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {msg}") {
                    bar.set_style(style.progress_chars("=> "));
                    bar.set_prefix(self.label.clone());
                }
            }
            bar.set_position(now.bytes_done);
            bar.set_message(text);
        } else {
            self.show(format!("{}: {text}", self.label));
        }
    }

    fn show(&mut self, text: String) {
        match &self.bar {
            Some(bar) => bar.set_message(text),
            None if self.printed.elapsed() >= LINE_EVERY => {
                eprintln!("{text}");
                self.printed = Instant::now();
            }
            None => {}
        }
    }

    /// Ends it with a line.
    pub fn finish(self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("{text}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How far a warm-up is, in words.
pub fn warm_up_text(now: &WarmUp, rate: u64) -> String {
    let WarmUp { bytes_done, bytes_total, failed, .. } = now;
    // Of nothing all is loaded, once it is known to be nothing.
    let of_nothing = if now.phase == Phase::Done { 100 } else { 0 };
    let percent = bytes_done.saturating_mul(100).checked_div(*bytes_total).unwrap_or(of_nothing);
    let mut text = format!("{percent} %, {} of {}", BinaryBytes(*bytes_done), BinaryBytes(*bytes_total));
    if rate > 0 {
        text.push_str(&format!(", {}/s", BinaryBytes(rate)));
        let left = bytes_total.saturating_sub(*bytes_done) / rate;
        if left > 0 && left < LONGEST_LEFT_SECONDS {
            text.push_str(&format!(", {} left", clock(left)));
        }
    }
    if *failed > 0 {
        text.push_str(&format!(", {failed} objects failed"));
    }
    text
}

fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes} min {seconds} s"),
        _ => format!("{hours} h {minutes} min"),
    }
}

/// A rate over the newest past.
#[derive(Debug, Default)]
struct Rate {
    /// Time and amount, oldest first; at most some ten a second of the last seconds.
    samples: std::collections::VecDeque<(Duration, u64)>,
}

impl Rate {
    fn add(&mut self, at: Duration, amount: u64) {
        self.samples.push_back((at, amount));
        while self.samples.front().is_some_and(|(first, _)| at.saturating_sub(*first) > RATE_OF)
            && self.samples.len() > 2
        {
            self.samples.pop_front();
        }
    }

    /// 0 as long as it is not known.
    fn per_second(&self) -> u64 {
        let (Some((first, from)), Some((last, to))) = (self.samples.front(), self.samples.back()) else {
            return 0;
        };
        let milliseconds = u64::try_from(last.saturating_sub(*first).as_millis()).unwrap_or(u64::MAX);
        if milliseconds < RATE_FROM_MS {
            return 0;
        }
        to.saturating_sub(*from).saturating_mul(1000).checked_div(milliseconds).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_newest_seconds() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(), 0);
        for second in 0..30 {
            rate.add(Duration::from_secs(second), if second < 15 { second * 100 } else { 1500 });
        }
        assert_eq!(rate.per_second(), 0);
        rate.add(Duration::from_secs(30), 2500);
        assert_eq!(rate.per_second(), 100);
        assert!(rate.samples.len() < 15);
    }

    #[test]
    fn a_warm_up_is_told_with_rate_time_left_and_failures() {
        let now = WarmUp {
            phase: Phase::Running,
            bytes_done: 1 << 30,
            bytes_total: 4 << 30,
            failed: 2,
            failures: vec![],
        };
        assert_eq!(
            warm_up_text(&now, 16 << 20),
            "25 %, 1.00 GiB of 4.00 GiB, 16.00 MiB/s, 3 min 12 s left, 2 objects failed"
        );
        let empty = WarmUp { bytes_done: 0, bytes_total: 0, failed: 0, ..now };
        assert_eq!(warm_up_text(&empty, 0), "0 %, 0 B of 0 B");
        let ended = WarmUp { phase: Phase::Done, ..empty };
        assert_eq!(warm_up_text(&ended, 0), "100 %, 0 B of 0 B");
        assert_eq!(clock(7325), "2 h 2 min");
    }
}
