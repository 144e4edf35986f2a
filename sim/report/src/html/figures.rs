//! Numbers in readable form.

use crate::numbers::grouped;

/// Formats three digits, or all digits before the point.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v < 0.01 => format!("{value:.4}"),
        v if v < 1.0 => format!("{value:.3}"),
        v if v < 9.995 => format!("{value:.2}"),
        v if v < 99.95 => format!("{value:.1}"),
        v if v < 999.5 => format!("{value:.0}"),
        _ if value > 0.0 => grouped(value.round() as u64),
        _ => format!("-{}", grouped(-value.round() as u64)),
    }
}

/// Formats three digits without trailing zeros.
pub(super) fn short(value: f64) -> String {
    let text = number(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// Formats a time with a suitable unit.
pub(super) fn seconds(s: f64) -> String {
    scaled(s, number)
}

/// Formats a configured time with a suitable unit and without trailing zeros.
pub(super) fn short_seconds(s: f64) -> String {
    scaled(s, short)
}

fn scaled(s: f64, show: fn(f64) -> String) -> String {
    let (by, unit) = match s.abs() {
        0.0 => (1.0, "s"),
        v if v < 0.9995e-6 => (1e9, "ns"),
        v if v < 0.9995e-3 => (1e6, "µs"),
        v if v < 0.9995 => (1e3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{} {unit}", show(s * by))
}

/// Formats a share in per cent.
pub(super) fn per_cent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_times_a_unit() {
        let values = [0.0, 0.001234, 0.1234, 1.234, 12.34, 123.4, 1234.5, 1_234_567.0];
        assert_eq!(values.map(number), ["0", "0.0012", "0.123", "1.23", "12.3", "123", "1,235", "1,234,567"]);
        let times = [0.0, 5e-9, 1.5e-6, 0.0123, 0.25, 1.0, 62.5, 3600.0];
        assert_eq!(
            times.map(short_seconds),
            ["0 s", "5 ns", "1.5 µs", "12.3 ms", "250 ms", "1 s", "62.5 s", "3,600 s"]
        );
        assert_eq!(times.map(seconds)[1..6], ["5.00 ns", "1.50 µs", "12.3 ms", "250 ms", "1.00 s"]);
        assert_eq!(per_cent(0.12345), "12.35 %");
    }
}
