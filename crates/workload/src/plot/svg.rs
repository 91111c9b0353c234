//! How are shapes and letters written as SVG?

use std::fmt::Write;

/// Width of a drawing, pixels.
pub const WIDTH: f64 = 900.0;

/// Where a text is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// At its beginning.
    Start,
    /// At its end.
    End,
}

/// A drawing that grows downwards.
#[derive(Debug, Default)]
pub struct Drawing {
    body: String,
    height: f64,
}

impl Drawing {
    /// Takes so much height below all that is there, and says where it begins.
    pub fn take(&mut self, height: f64) -> f64 {
        let top = self.height;
        self.height += height;
        top
    }

    /// A filled rectangle.
    pub fn rectangle(&mut self, [x, y, width, height]: [f64; 4], fill: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        ));
    }

    /// A line; dashed where it is a bound.
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], stroke: &str, is_dashed: bool) {
        let dashes = if is_dashed { " stroke-dasharray=\"6 4\"" } else { "" };
        self.add(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\"{dashes}/>"
        ));
    }

    /// A filled shape.
    pub fn polygon(&mut self, points: &[(f64, f64)], fill: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!("<polygon points=\"{}\" fill=\"{fill}\"/>", points.join(" ")));
    }

    /// A text on a base line, of so many pixels.
    pub fn text(&mut self, x: f64, y: f64, size: u32, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// The file.
    pub fn finish(self) -> String {
        let Self { body, height } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"sans-serif\" fill=\"#222\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n{body}</svg>\n"
        )
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to memory does not fail.
        let _ = writeln!(self.body, "{element}");
    }
}

/// A text as XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_from_outside_stay_texts() {
        let mut drawing = Drawing::default();
        let top = drawing.take(20.0);
        drawing.text(1.0, top + 10.0, 12, Anchor::End, "/mnt/<a>&b");
        let svg = drawing.finish();
        assert!(svg.contains("/mnt/&lt;a&gt;&amp;b") && svg.contains("text-anchor=\"end\""), "{svg}");
        assert!(svg.contains("viewBox=\"0 0 900 20\""), "{svg}");
    }
}
