//! Sizes in bytes with units, and lists with one value for all or one for each.

use anyhow::bail;
use trunkline_quote::quoted;

/// Largest size, bytes: an exabyte.
const BYTES_MAX: f64 = 1e18;
/// Units of sizes, with their bytes.
const UNITS: [(&str, f64); 8] = [
    ("TiB", 1.099511627776e12),
    ("GiB", 1.073741824e9),
    ("MiB", 1.048576e6),
    ("TB", 1e12),
    ("GB", 1e9),
    ("MB", 1e6),
    ("T", 1e12),
    ("G", 1e9),
];

/// Reads a size such as `64GB` or `1.5 TiB`, in bytes.
///
/// # Errors
/// If the text is not a number with a unit, or not above 0. `subject` names the size.
pub(crate) fn parse_size(subject: &str, text: &str) -> anyhow::Result<f64> {
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let bytes = unit.and_then(|(number, bytes)| Some(number.trim().parse::<f64>().ok()? * bytes));
    match bytes {
        Some(bytes) if bytes > 0.0 && bytes <= BYTES_MAX => Ok(bytes),
        _ => bail!(
            "{subject} is {text}; write a number above 0 with MB, GB, TB, MiB, GiB or TiB, such as 64GB or 2TiB",
            text = quoted(text)
        ),
    }
}

/// Splits a list of `n` words; one word stands for all.
///
/// # Errors
/// If there are several words, and not `n`.
pub(crate) fn one_or_each<'a>(flag: &str, text: &'a str, n: usize) -> anyhow::Result<Vec<&'a str>> {
    let words: Vec<&str> = text.split(',').collect();
    match words.len() {
        1 => Ok(vec![words[0]; n]),
        len if len == n => Ok(words),
        len => bail!("{flag} has {len} values for {n} tiers; give one for all, or one for each"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let host = |text| parse_size("the size of the host tier", text);
        assert_eq!(host("64GB").unwrap(), 64e9);
        assert_eq!(host("1.5 TiB").unwrap(), 1.5 * 1.099511627776e12);
        for bad in ["", "64", "GB", "-1GB", "0GB", "1e99TB", "nanGB"] {
            let err = host(bad).unwrap_err().to_string();
            assert_eq!(
                err,
                format!(
                    "the size of the host tier is '{bad}'; write a number above 0 with MB, GB, TB, MiB, GiB or TiB, such as 64GB or 2TiB"
                )
            );
        }
    }

    #[test]
    fn words_are_for_all_or_for_each() {
        assert_eq!(one_or_each("tier-write", "back", 3).unwrap(), ["back"; 3]);
        assert_eq!(one_or_each("tier-write", "back,through", 2).unwrap(), ["back", "through"]);
        let err = one_or_each("tier-write", "back,through", 3).unwrap_err().to_string();
        assert_eq!(err, "tier-write has 2 values for 3 tiers; give one for all, or one for each");
    }
}
