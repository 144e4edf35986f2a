//! Error that a roofline states for a model, a number of devices and each kind of batch.

use super::super::{Parallel, StepErrors};
use crate::hardware::{Hardware, RooflineError};
use crate::model::{self, Model, Precision};

/// Returns the errors of the roofline of `model`, and a statement of them. A model without a measurement has the largest errors of
/// the measured models on as many devices if it is of their sort: dense or with experts, full attention, 16 bits.
pub(super) fn of(hardware: &Hardware, model: &Model, parallel: Parallel) -> (StepErrors, String) {
    let none = |why: String| (StepErrors::default(), format!("error not measured for {why}"));
    let has_experts = |name: &str| model::by_name(name).is_ok_and(|preset| preset.experts.is_some());
    let of_sort = |error: &&RooflineError| {
        error.tensor == parallel.tensor
            && error.expert == parallel.expert
            && has_experts(error.model) == model.experts.is_some()
    };
    let measured: Vec<&RooflineError> = hardware.errors.iter().filter(of_sort).collect();
    if hardware.errors.is_empty() {
        return none(format!("{}; shares of the peaks are assumed", hardware.name));
    }
    if parallel.pipeline > 1 {
        return none("pipelines".into());
    }
    if parallel.data > 1 {
        return none("data-parallel attention".into());
    }
    if let Some(error) = measured.iter().find(|error| is(error.model, model)) {
        let RooflineError { against, errors, .. } = error;
        return (*errors, format!("held-out error, median / p95: {errors}; against {against}"));
    }
    if let Some(what) = unlike(model) {
        return none(format!("{what}, such as {}", model.name));
    }
    let tensor = parallel.tensor;
    let sort = if model.experts.is_some() { "model with experts" } else { "model" };
    let whole = if parallel.expert > 1 { ", whole experts on each" } else { "" };
    let Some(largest) = measured.iter().map(|error| error.errors).reduce(StepErrors::or_larger) else {
        let devices = if tensor == 1 { "one device".into() } else { format!("{tensor} devices") };
        return none(format!("any {sort} on {devices}{whole}"));
    };
    let kind = if model.experts.is_some() { "models with experts" } else { "dense models" };
    let (n, against) = (measured.len(), measured[0].against);
    let models = if n == 1 { format!("of {}", measured[0].model) } else { format!("the largest of {n} {kind}") };
    let statement = format!(
        "error not measured for {} tp{tensor}{whole}; {models} there, median / p95: {largest}; against {against}",
        model.name
    );
    (largest, statement)
}

/// Returns `true` if `model` has the shapes of the preset called `name`.
fn is(name: &str, model: &Model) -> bool {
    model::by_name(name).is_ok_and(|preset| model.is_like(preset))
}

/// Returns the property of `model` that no measured model has, if any.
fn unlike(model: &Model) -> Option<&'static str> {
    [
        (model.windows.is_some(), "sliding windows"),
        (!model.extras.unread.is_empty(), "fields of its configuration that are not read"),
        (model.extras.planned_as_full.is_some(), "attention that is not full, and is planned as if it were"),
        (model.extras.output_gate, "gates of attention"),
        (model.latent.is_some(), "latent attention"),
        (model.hybrid.is_some(), "recurrent layers"),
        (model.kv_share > 1, "layers that share their KV"),
        (model.cross_layers > 0, "layers of cross-attention"),
        (model.precision != Precision::BITS_16, "weights that are not of 16 bits"),
        (model.kv_dtype_bytes != 2, "KV that is not of 16 bits"),
    ]
    .into_iter()
    .find_map(|(is, what)| is.then_some(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Residuals;
    use crate::hardware;
    use crate::model::{Arithmetic, Bits};

    fn errors(median: f64) -> StepErrors {
        let of = Some(Residuals { median, p95: 2.0 * median, bias: 0.0 });
        StepErrors { prefill: of, decode: of, mixed: of }
    }

    fn statement(model: &Model, parallel: &str) -> (StepErrors, String) {
        const fn measured(model: &'static str, tensor: u32, errors: StepErrors) -> RooflineError {
            RooflineError { model, tensor, expert: 1, against: "a table", errors }
        }
        let of = [
            measured("llama-3.1-8b", 1, errors(0.05)),
            measured("qwen3-8b", 1, errors(0.125)),
            measured("llama-3.1-8b", 2, errors(0.25)),
            measured("mixtral-8x7b", 2, errors(0.5)),
            RooflineError { expert: 2, ..measured("mixtral-8x7b", 2, errors(0.75)) },
        ];
        let hardware = Hardware { errors: of.to_vec().leak(), ..*hardware::by_name("l4-24g").unwrap() };
        super::of(&hardware, model, parallel.parse().unwrap())
    }

    fn preset(name: &str) -> Model {
        *model::by_name(name).unwrap()
    }

    #[test]
    fn a_measured_model_states_its_own_error_on_as_many_devices() {
        let mine = Model { name: "mine", ..preset("llama-3.1-8b") };
        for model in [preset("llama-3.1-8b"), mine] {
            let (found, text) = statement(&model, "tp1");
            assert_eq!(found, errors(0.05));
            let expected = "held-out error, median / p95: prefill 5.0 / 10.0 %, decode 5.0 / 10.0 %, mixed 5.0 / 10.0 %; against a table";
            assert_eq!(text, expected);
            assert_eq!(statement(&model, "tp2").0, errors(0.25));
        }
    }

    #[test]
    fn another_dense_model_states_the_largest_error_and_that_it_is_not_its_own() {
        let (found, text) = statement(&preset("qwen3-4b"), "tp1");
        assert_eq!(found, errors(0.125));
        assert!(
            text.starts_with("error not measured for qwen3-4b tp1; the largest of 2 dense models there, "),
            "{text}"
        );
        assert!(statement(&preset("qwen3-4b"), "tp2").1.contains("; of llama-3.1-8b there, "));
    }

    #[test]
    fn a_model_with_experts_states_errors_of_such_models_divided_like_it() {
        let of = |name, parallel| statement(&preset(name), parallel);
        assert_eq!(of("mixtral-8x7b", "tp2").0, errors(0.5));
        assert_eq!(of("mixtral-8x7b", "tp2ep2").0, errors(0.75));
        let (found, text) = of("qwen3-30b-a3b", "tp2ep2");
        assert_eq!(found, errors(0.75));
        let expected = "error not measured for qwen3-30b-a3b tp2, whole experts on each; of mixtral-8x7b there, ";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(of("qwen3-8b", "tp2").0, errors(0.25), "a dense model states none of them");
    }

    #[test]
    fn what_was_not_measured_states_no_error() {
        let none = |model: Model, parallel| {
            let (found, text) = statement(&model, parallel);
            assert!(found.is_empty(), "{text}");
            text
        };
        assert_eq!(none(preset("llama-3.1-8b"), "tp4"), "error not measured for any model on 4 devices");
        assert_eq!(none(preset("llama-3.1-8b"), "tp1pp2"), "error not measured for pipelines");
        let moe = none(preset("mixtral-8x7b"), "tp1");
        assert_eq!(moe, "error not measured for any model with experts on one device");
        let ranks = none(preset("mixtral-8x7b"), "dp2ep2");
        assert_eq!(ranks, "error not measured for data-parallel attention");
        let in_8_bits = none(
            Model { precision: Precision::quantised(Bits::each(8), Arithmetic::Float8), ..preset("llama-3.1-8b") },
            "tp1",
        );
        assert_eq!(in_8_bits, "error not measured for weights that are not of 16 bits, such as llama-3.1-8b");
        let assumed = of(hardware::by_name("l4-24g").unwrap(), &preset("llama-3.1-8b"), Parallel::ONE);
        assert_eq!(assumed.1, "error not measured for l4-24g; shares of the peaks are assumed");
    }
}
