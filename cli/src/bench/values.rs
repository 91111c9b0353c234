//! How are sizes and times written on the command line?

use std::time::Duration;

/// A size: `4096`, `128k`, `1MiB`, `2GB`. A bare letter is binary, as for fio and dd.
///
/// # Errors
/// Where it is none.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        "kb" => Some(1_000),
        "mb" => Some(1_000_000),
        "gb" => Some(1_000_000_000),
        _ => None,
    };
    let size = factor.and_then(|factor: u64| number.parse::<u64>().ok()?.checked_mul(factor));
    size.filter(|size| *size > 0)
        .ok_or_else(|| format!("{text:?} is no size: write bytes, or a number with k, m or g, such as 128k"))
}

/// The largest block that is read at once: each thread holds a buffer of it.
const MAX_BLOCK_BYTES: u64 = 1 << 30;

/// The size of a block.
///
/// # Errors
/// Where it is none, or too large.
pub fn block_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes > MAX_BLOCK_BYTES => Err(format!("{text:?} is too large a block: at most 1g")),
        bytes => Ok(bytes),
    }
}

/// A number of threads.
///
/// # Errors
/// Where it is none, or too large.
pub fn threads(text: &str) -> Result<usize, String> {
    let most = millrace_workload::run::MAX_THREADS;
    let count = text.parse().ok().filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| format!("{text:?} is no number of threads: write one from 1 to {most}"))
}

/// Emulated accelerators, and threads of one: each has a thread of its own.
const MAX_RANKS: usize = 128;

/// A number of accelerators, or of threads of one.
///
/// # Errors
/// Where it is none, or too large.
pub fn ranks(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=MAX_RANKS).contains(count));
    count.ok_or_else(|| format!("{text:?} must be a number from 1 to {MAX_RANKS}"))
}

/// A time: `30` (seconds), `0.5`, `30s`, `2m`.
///
/// # Errors
/// Where it is none.
pub fn time(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.strip_suffix(['s', 'm']) {
        Some(number) if text.ends_with('m') => (number, 60.0),
        Some(number) => (number, 1.0),
        None => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok().map(|number| number * factor);
    // A week: longer is a slip.
    let seconds = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= 604_800.0);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        format!("{text:?} is no time: write seconds, or a number with s or m, such as 30s, up to a week")
    })
}

/// A share: `1`, `0.25`, `1/16`.
///
/// # Errors
/// Where it is none, or not above 0.
pub fn share(text: &str) -> Result<f64, String> {
    let (above, below) = text.split_once('/').unwrap_or((text, "1"));
    let share = above.parse::<f64>().ok().zip(below.parse::<f64>().ok()).map(|(above, below)| above / below);
    share
        .filter(|share| *share > 0.0 && *share <= 1_000.0)
        .ok_or_else(|| format!("{text:?} is no share: write a number such as 0.25, or 1/16"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_fio_reads_them() {
        let sizes =
            [("4096", 4096), ("4k", 4096), ("128KiB", 128 << 10), ("1M", 1 << 20), ("2GB", 2_000_000_000)];
        for (text, bytes) in sizes {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "4x", "-1", "0", "1.5m", "99999999999g"] {
            assert!(size(text).unwrap_err().contains("128k"), "{text}");
        }
        assert!(block_size("2g").unwrap_err().contains("at most 1g"));
        assert!(threads("0").is_err() && threads("1025").is_err() && threads("4") == Ok(4));
    }

    #[test]
    fn times_and_shares_have_their_forms() {
        assert_eq!(time("30"), Ok(Duration::from_secs(30)));
        assert_eq!(time("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "0", "-3", "inf", "nan", "3h", "99999999"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert_eq!(share("1/16"), Ok(0.0625));
        assert_eq!(share("2"), Ok(2.0));
        for text in ["", "0", "1/0", "x/2", "-1", "nan"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
