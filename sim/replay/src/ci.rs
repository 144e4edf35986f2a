//! Verdicts on a change of the program: recordings run again with this version, against what another version made of them.

use std::str::FromStr;

use serde::Serialize;
use trunkline_quote::quoted;

use crate::diff::{Diff, FIGURES, with_changes};
use crate::rerun::{RerunError, Script};

/// Growth of a figure that is accepted by default: as much as a fit of step times may be off in all ([`crate::calibrate`](mod@crate::calibrate)).
pub const GROWTH_MAX: f64 = 0.05;

/// Growth of a figure that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// Name of the figure, one of [`FIGURES`].
    pub figure: &'static str,
    /// Growth as a share of the figure before, at most.
    pub growth_max: f64,
}

/// Budget that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Text of another form.
    #[error("the budget is {}; give FIGURE=PERCENT, such as e2e_p99=5", quoted(.0))]
    Form(String),
    /// Unknown figure.
    #[error("there is no figure {}; there are: {}", quoted(.0), FIGURES.join(", "))]
    Figure(String),
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let form = || BudgetError::Form(text.into());
        let (name, per_cent) = text.split_once('=').ok_or_else(form)?;
        let figure =
            FIGURES.into_iter().find(|figure| *figure == name).ok_or_else(|| BudgetError::Figure(name.into()))?;
        let per_cent = per_cent.strip_suffix('%').unwrap_or(per_cent).trim();
        let per_cent: f64 = per_cent.parse().ok().filter(|it: &f64| it.is_finite() && *it >= 0.0).ok_or_else(form)?;
        Ok(Self { figure, growth_max: per_cent / 100.0 })
    }
}

/// Verdict on one recording.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Name of the recording.
    pub recording: String,
    /// Differences between the versions: before is the other one.
    pub diff: Diff,
    /// Budgets that are exceeded, with the growth.
    pub exceeded: Vec<(Budget, f64)>,
}

impl Verdict {
    /// Returns the number of requests that completed before and no longer do.
    pub fn lost(&self) -> usize {
        self.diff.alone[0]
    }

    /// Returns `true` if requests completed, all those that completed before among them, and no budget is exceeded.
    pub fn is_good(&self) -> bool {
        !self.diff.pairs.is_empty() && self.lost() == 0 && self.exceeded.is_empty()
    }
}

/// Returns the budgets that hold: those given, and the default for all other figures.
pub fn budgets(given: &[Budget]) -> Vec<Budget> {
    let of = |figure: &'static str| {
        let found = given.iter().rev().find(|budget| budget.figure == figure).copied();
        found.unwrap_or(Budget { figure, growth_max: GROWTH_MAX })
    };
    FIGURES.into_iter().map(of).collect()
}

/// Runs a recording that another version saved with this one.
///
/// # Errors
///
/// [`RerunError`] if this version cannot run it.
pub fn verdict(recording: String, script: &Script, budgets: &[Budget]) -> Result<Verdict, RerunError> {
    let diff = with_changes(script, &[])?;
    let growth = |budget: &Budget| {
        let figure = diff.figures.iter().find(|figure| figure.name == budget.figure).expect("all figures are there");
        figure.change()
    };
    let grown = budgets.iter().map(|budget| (*budget, growth(budget)));
    let exceeded = grown.filter(|(budget, growth)| *growth > budget.growth_max).collect();
    Ok(Verdict { recording, diff, exceeded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_and_the_others_have_the_default() {
        let given = ["e2e_p99=10%", "ttft_mean=0", "e2e_p99=7.5"].map(|text| text.parse::<Budget>().unwrap());
        let all = budgets(&given);
        let of = |name| all.iter().find(|budget| budget.figure == name).unwrap().growth_max;
        assert_eq!((of("e2e_p99"), of("ttft_mean"), of("e2e_p50"), all.len()), (0.075, 0.0, GROWTH_MAX, FIGURES.len()));
        let fail = |text: &str| text.parse::<Budget>().unwrap_err().to_string();
        assert_eq!(fail("e2e"), "the budget is 'e2e'; give FIGURE=PERCENT, such as e2e_p99=5");
        assert_eq!(fail("e2e_p99=-1"), "the budget is 'e2e_p99=-1'; give FIGURE=PERCENT, such as e2e_p99=5");
        assert!(fail("e2e_p98=1").starts_with("there is no figure 'e2e_p98'; there are: ttft_mean, "));
    }
}
