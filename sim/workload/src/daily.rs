//! Daily curves: the rate of arrivals in each hour of a day, as a factor on a base rate.
//!
//! A file has a line for each hour, `HOUR,RATE`, with hours from 0 to 23, or from `00:00` to `23:00`, in any order; a first line
//! `hour,rate`, empty lines and lines with `#` at the start are left out. A rate of 0 is an hour without arrivals. `PEAK:TROUGH` is a sinusoidal day with the trough at midnight and the peak at noon, as the
//! process `diurnal` of a workload.
//!
//! ```
//! use trunkline_sim_workload::daily::DailyCurve;
//!
//! let curve: DailyCurve = "1.5:0.5".parse()?;
//! assert!((curve.rates().iter().sum::<f64>() / 24.0 - 1.0).abs() < 1e-9);
//! assert_eq!(curve.rate_at(12.3), curve.rates()[12]);
//! # Ok::<(), trunkline_sim_workload::daily::DailyCurveError>(())
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use trunkline_quote::quoted;

use crate::lines::LineNumber;

/// Hours of a day.
pub const HOURS: usize = 24;
/// Lowest factor above 0, and highest factor.
const RATE_MIN: f64 = 1e-3;
const RATE_MAX: f64 = 1e3;
/// Largest file, bytes.
const CURVE_BYTES_MAX: u64 = 1 << 16;

/// Rate of each hour of a day, from midnight on, as a factor on a base rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct DailyCurve([f64; HOURS]);

/// Invalid daily curve.
#[derive(Debug, thiserror::Error)]
pub enum DailyCurveError {
    /// File that cannot be read, or is not a file of a curve.
    #[error("{}: {fault}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        fault: std::io::Error,
    },
    /// Wrong line of a file.
    #[error("{}{}: {fault}", path.display(), LineNumber(*line))]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number from 1; 0 for a fault outside any line.
        line: u64,
        /// Fault and remedy.
        fault: String,
    },
    /// Rate out of range.
    #[error("rate of hour {hour} is {rate}; it must be 0, or from {RATE_MIN} to {RATE_MAX} times the base rate")]
    Rate {
        /// Hour, from 0 to 23.
        hour: usize,
        /// Rate as given on input.
        rate: f64,
    },
    /// Day without arrivals.
    #[error("all rates are 0; give at least one hour a rate above 0")]
    Closed,
    /// Rates of another number of hours.
    #[error("{0} rates; a day has {HOURS}, one for each hour")]
    Hours(usize),
    /// Neither two rates nor a file.
    #[error("daily curve is {}; give a file with HOUR,RATE in {HOURS} lines, or PEAK:TROUGH, such as 1.5:0.4", quoted(.0))]
    Spec(String),
}

impl DailyCurve {
    /// Returns the curve with the given rates.
    ///
    /// # Errors
    ///
    /// [`DailyCurveError`] unless there are [`HOURS`] rates within the range, one of them above 0.
    pub fn new(rates: &[f64]) -> Result<Self, DailyCurveError> {
        let all: [f64; HOURS] = rates.try_into().map_err(|_| DailyCurveError::Hours(rates.len()))?;
        match all.iter().position(|rate| *rate != 0.0 && !(RATE_MIN..=RATE_MAX).contains(rate)) {
            Some(hour) => Err(DailyCurveError::Rate { hour, rate: all[hour] }),
            None if all.iter().all(|rate| *rate == 0.0) => Err(DailyCurveError::Closed),
            None => Ok(Self(all)),
        }
    }

    /// Reads `PEAK:TROUGH`, or else a file.
    ///
    /// # Errors
    ///
    /// [`DailyCurveError`] if the file cannot be read, an hour is missing or given twice, or a rate is out of range.
    pub fn find(spec: &str) -> Result<Self, DailyCurveError> {
        if let Ok(curve) = spec.parse() {
            return Ok(curve);
        }
        let path = Path::new(spec);
        if !path.exists() {
            return Err(spec.parse::<Self>().err().unwrap_or_else(|| DailyCurveError::Spec(spec.into())));
        }
        let unreadable = |fault| DailyCurveError::Unreadable { path: path.into(), fault };
        if fs::metadata(path).map_err(unreadable)?.len() > CURVE_BYTES_MAX {
            let fault = format!("is longer than {CURVE_BYTES_MAX} bytes; this is not a daily curve");
            return Err(DailyCurveError::Line { path: path.into(), line: 0, fault });
        }
        let text = fs::read_to_string(path).map_err(unreadable)?;
        let rates = lines(&text).map_err(|(line, fault)| DailyCurveError::Line { path: path.into(), line, fault })?;
        Self::new(&rates)
    }

    /// Returns the rate of each hour, from midnight on.
    pub fn rates(&self) -> &[f64; HOURS] {
        &self.0
    }

    /// Returns the rate at a time of the day, hours from midnight; days follow each other.
    pub fn rate_at(&self, hours: f64) -> f64 {
        self.0[(hours.rem_euclid(HOURS as f64) as usize).min(HOURS - 1)]
    }

    /// Returns the highest rate.
    pub fn peak(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }
}

impl FromStr for DailyCurve {
    type Err = DailyCurveError;

    /// Reads `PEAK:TROUGH`. The rate of an hour is that of the middle of the hour.
    fn from_str(spec: &str) -> Result<Self, DailyCurveError> {
        let ends = spec
            .split_once(':')
            .and_then(|(peak, trough)| Some((peak.trim().parse().ok()?, trough.trim().parse().ok()?)));
        let (peak, trough): (f64, f64) = ends.ok_or_else(|| DailyCurveError::Spec(spec.into()))?;
        if peak.is_nan() || trough.is_nan() || peak < trough {
            return Err(DailyCurveError::Spec(spec.into()));
        }
        let phase = |hour: usize| std::f64::consts::TAU * (hour as f64 + 0.5) / HOURS as f64;
        let rate = |hour| trough + (peak - trough) * (1.0 - libm::cos(phase(hour))) / 2.0;
        Self::new(&(0..HOURS).map(rate).collect::<Vec<_>>())
    }
}

/// Returns the rates of a file by hour, or the number of a line with its fault.
fn lines(text: &str) -> Result<Vec<f64>, (u64, String)> {
    let mut rates = [None; HOURS];
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.eq_ignore_ascii_case("hour,rate") {
            continue;
        }
        let parsed = line.split_once(',').and_then(|(hour, rate)| {
            let hour = hour.trim();
            let hour = hour.strip_suffix(":00").unwrap_or(hour).parse::<usize>().ok().filter(|hour| *hour < HOURS)?;
            Some((hour, rate.trim().parse::<f64>().ok()?))
        });
        let (hour, rate) = parsed.ok_or_else(|| {
            (
                number,
                format!("{line} is not an HOUR,RATE with an hour from 0 to 23, such as 14,1.2", line = quoted(line)),
            )
        })?;
        if rates[hour].replace(rate).is_some() {
            return Err((number, format!("hour {hour} is given twice")));
        }
    }
    match rates.iter().position(Option::is_none) {
        Some(hour) => Err((0, format!("hour {hour} is missing; give a rate for each hour from 0 to 23"))),
        None => Ok(rates.into_iter().flatten().collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(text: &str) -> Result<DailyCurve, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "{text}").unwrap();
        let path = file.path().display().to_string();
        DailyCurve::find(&path).map_err(|error| error.to_string().replace(&path, "FILE"))
    }

    #[test]
    fn files_have_a_rate_for_each_hour() {
        let hours: String = (0..24).rev().map(|hour| format!("{hour}, {}\n", 0.5 + f64::from(hour) / 10.0)).collect();
        let curve = file(&format!("# a day\nhour,rate\n\n{hours}")).unwrap();
        assert_eq!((curve.rates()[0], curve.rates()[23], curve.peak()), (0.5, 2.8, 2.8));
        assert_eq!((curve.rate_at(23.99), curve.rate_at(24.0), curve.rate_at(25.5)), (2.8, 0.5, 0.6));
        assert_eq!(
            file("0,1\n1,x\n").unwrap_err(),
            "FILE, line 2: '1,x' is not an HOUR,RATE with an hour from 0 to 23, such as 14,1.2"
        );
        assert_eq!(file("0,1\n0,2\n").unwrap_err(), "FILE, line 2: hour 0 is given twice");
        assert_eq!(file("0,1\n").unwrap_err(), "FILE: hour 1 is missing; give a rate for each hour from 0 to 23");
        let negative = hours.replace("3, 0.8", "3, -1");
        let range = "it must be 0, or from 0.001 to 1000 times the base rate";
        assert_eq!(file(&negative).unwrap_err(), format!("rate of hour 3 is -1; {range}"));
        assert_eq!(file(&hours.replace("3, 0.8", "3, 0")).unwrap().rates()[3], 0.0, "closed");
        let clock: String = (0..24).map(|hour| format!("{hour:02}:00,{hour}\n")).collect();
        assert_eq!(file(&clock).unwrap().rates()[8], 8.0);
        assert!(file("24:00,1\n").is_err() && file("08:30,1\n").is_err());
        assert_eq!(
            DailyCurve::new(&[0.0; 24]).unwrap_err().to_string(),
            "all rates are 0; give at least one hour a rate above 0"
        );
    }

    #[test]
    fn a_peak_and_a_trough_make_a_sinusoidal_day() {
        let curve = DailyCurve::find("2:0.4").unwrap();
        assert!(curve.rates()[..12].is_sorted() && curve.rates()[12..].iter().rev().is_sorted());
        assert!((curve.peak() - 2.0).abs() < 0.01 && (curve.rates()[0] - 0.4).abs() < 0.01);
        let message = |spec: &str| DailyCurve::find(spec).unwrap_err().to_string();
        for spec in ["none.csv", "0.4:2", "1:", "nan:1"] {
            assert_eq!(
                message(spec),
                format!(
                    "daily curve is '{spec}'; give a file with HOUR,RATE in 24 lines, or PEAK:TROUGH, such as 1.5:0.4"
                )
            );
        }
        let range = "it must be 0, or from 0.001 to 1000 times the base rate";
        assert_eq!(message("2000:2000"), format!("rate of hour 0 is 2000; {range}"));
        assert_eq!(DailyCurve::new(&[1.0; 23]).unwrap_err().to_string(), "23 rates; a day has 24, one for each hour");
    }
}
