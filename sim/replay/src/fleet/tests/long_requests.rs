//! Requests longer than the model's context.

use super::*;

#[test]
fn a_report_counts_them_and_says_which_flag_shortens_them() {
    let trace = trace((0..4).map(|at| request(0, 100 + at, 20, &[at])).collect());
    let too_long = |max_context| {
        let mut settings = settings(512, 1000);
        settings.model.max_context = max_context;
        let report = run(&trace, &settings);
        assert_eq!((report.completed, report.tokens.output_tokens), (4, 80), "they run to their ends");
        report.tokens.too_long.map(|requests| requests.to_string())
    };
    assert_eq!(too_long(Some(123)), None, "as long as the longest");
    let two =
        "2 requests are longer than the model's context of 121 tokens, up to 123; --max-context 121 shortens them";
    assert_eq!(too_long(Some(121)).as_deref(), Some(two));
    assert_eq!(too_long(None), None, "a model that does not say");
}
