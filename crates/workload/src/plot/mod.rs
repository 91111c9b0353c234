//! How are figures drawn beside each other?

pub mod svg;

use self::svg::{Anchor, Drawing, WIDTH};

/// Colours that keep apart in print too.
pub const BLUE: &str = "#3b6fb6";
/// See [`BLUE`].
pub const GREEN: &str = "#4c9f70";
/// See [`BLUE`].
pub const RED: &str = "#c8553d";
/// See [`BLUE`].
pub const GREY: &str = "#b8b8b8";

/// Where bars and areas begin, pixels.
pub const LEFT: f64 = 230.0;
/// Where they end, pixels.
pub const RIGHT: f64 = WIDTH - 90.0;

/// A figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Of what.
    pub label: String,
    /// The figure, not below 0.
    pub value: f64,
    /// How sure it is, from the lowest to the highest.
    pub interval: Option<(f64, f64)>,
    /// Its colour.
    pub fill: &'static str,
}

/// Draws bars one below the other, the longest from end to end; nothing where there is nothing above 0.
pub fn bars(drawing: &mut Drawing, title: &str, bars: &[Bar]) {
    const ROW: f64 = 24.0;
    let ends = bars.iter().map(|bar| bar.interval.map_or(bar.value, |(_, high)| high.max(bar.value)));
    let Some(most) = ends.max_by(f64::total_cmp).filter(|most| *most > 0.0) else { return };
    let top = drawing.take(34.0 + ROW * bars.len() as f64 + 16.0);
    drawing.text(LEFT, top + 20.0, 14, Anchor::Start, title);
    let x = |value: f64| LEFT + (RIGHT - LEFT) * value / most;
    for (number, Bar { label, value, interval, fill }) in bars.iter().enumerate() {
        let y = top + 34.0 + ROW * number as f64;
        drawing.text(LEFT - 10.0, y + 14.0, 12, Anchor::End, label);
        drawing.rectangle([LEFT, y, x(*value) - LEFT, ROW - 6.0], fill);
        let mut end = x(*value);
        if let Some((low, high)) = *interval {
            let middle = y + (ROW - 6.0) / 2.0;
            drawing.line([x(low), middle, x(high), middle], "#222", false);
            for at in [x(low), x(high)] {
                drawing.line([at, middle - 4.0, at, middle + 4.0], "#222", false);
            }
            end = end.max(x(high));
        }
        drawing.text(end + 6.0, y + 14.0, 12, Anchor::Start, &number_text(*value));
    }
}

/// A figure with as many digits as mean something.
pub fn number_text(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{value:.3}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64, interval: Option<(f64, f64)>) -> Bar {
        Bar { label: "one".to_owned(), value, interval, fill: BLUE }
    }

    #[test]
    fn the_highest_end_of_an_interval_is_on_the_paper() {
        let mut drawing = Drawing::default();
        bars(&mut drawing, "files/s", &[bar(100.0, Some((90.0, 200.0))), bar(50.0, None)]);
        let svg = drawing.finish();
        let (half, end) = (LEFT + (RIGHT - LEFT) / 2.0, RIGHT);
        assert!(svg.contains(&format!("x2=\"{end:.1}\"")), "{svg}");
        assert!(svg.contains(&format!("width=\"{:.1}\"", half - LEFT)), "{svg}");
        assert!(svg.contains(">100<") && svg.contains(">50.0<") && svg.contains(">files/s<"), "{svg}");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        let mut drawing = Drawing::default();
        bars(&mut drawing, "files/s", &[]);
        bars(&mut drawing, "files/s", &[bar(0.0, None)]);
        assert!(!drawing.finish().contains("files/s"));
    }

    #[test]
    fn small_figures_keep_their_digits() {
        assert_eq!([0.1234, 5.0, 777.4].map(number_text), ["0.123", "5.0", "777"]);
    }
}
