//! Formatting of numbers, and ratios.

/// Formats a number with digits in groups of three.
///
/// ```
/// assert_eq!(trunkline_sim_report::numbers::grouped(1_234_567), "1,234,567");
/// ```
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns `part / whole`, or 0 for a `whole` of 0.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}
