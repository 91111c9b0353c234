//! How is a case drawn?

use millrace_workload::plot::svg::{Anchor, Drawing};
use millrace_workload::plot::{BLUE, Bar, GREY, LEFT, bars};

use super::cases::Better;
use super::document::Document;
use crate::rivals::{Contender, Millrace};

/// The medians with their intervals, ours in a colour, as an SVG file.
pub fn draw(document: &Document) -> String {
    let mut drawing = Drawing::default();
    let top = drawing.take(36.0);
    drawing.text(LEFT, top + 26.0, 16, Anchor::Start, &document.title);
    let better = match document.better {
        Better::Higher => "more is better",
        Better::Lower => "less is better",
    };
    let fill = |name: &str| if name == Millrace.name() { BLUE } else { GREY };
    let rows: Vec<Bar> = document
        .contenders
        .iter()
        .map(|figures| Bar {
            label: figures.name.clone(),
            value: figures.median,
            interval: Some(figures.interval),
            fill: fill(&figures.name),
        })
        .collect();
    bars(&mut drawing, &format!("{}, {better}", document.unit), &rows);
    drawing.finish()
}
