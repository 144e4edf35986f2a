//! What a figure is: name, title, unit, direction, meaning, and where texts show it.

use trunkline_sim_perf::columns::{Cell, Kind};

/// Preferred direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Lower values are better, as of latencies.
    Lower,
    /// Higher values are better, as of throughput.
    Higher,
    /// Values describe the replay and do not rate it.
    Neither,
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Time in seconds.
    Seconds,
    /// Number of events per second.
    PerSecond,
    /// Share of a whole, from 0 to 1.
    Share,
    /// Number of events or things, or a mean of such numbers.
    Count,
    /// Text, without a unit.
    Text,
}

/// Access to the value of a figure in its source `T`; `None` if the source lacks the figure.
#[derive(Clone, Copy, Debug)]
pub enum Value<T> {
    /// Access to a whole number.
    Count(fn(&T) -> Option<u64>),
    /// Access to a real number.
    Real(fn(&T) -> Option<f64>),
    /// Access to a text.
    Text(fn(&T) -> &str),
}

/// What a figure is, without its value.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Name of the column, equal to the field of the JSON report.
    pub name: &'static str,
    /// Title in tables and on pages.
    pub title: &'static str,
    /// Unit of the value.
    pub unit: Unit,
    /// Preferred direction of the value.
    pub direction: Direction,
    /// Meaning, in one sentence.
    pub help: &'static str,
    /// Title of the column in the text that compares replays; `None` without a column there.
    pub column: Option<&'static str>,
    /// Digits after the point of a real number.
    pub digits: usize,
    /// `true` to leave the figure out of texts and pages where it is 0, or lacking, in all replays.
    pub is_rare: bool,
}

/// Figure of a source `T`: a report, the report of a tier, or the counters of all replicas.
#[derive(Clone, Copy, Debug)]
pub struct Figure<T> {
    /// What the figure is.
    pub about: About,
    /// Access to the value.
    pub value: Value<T>,
}

impl<T> std::ops::Deref for Figure<T> {
    type Target = About;

    fn deref(&self) -> &About {
        &self.about
    }
}

impl<T> Figure<T> {
    /// Shows the figure in the text that compares replays.
    pub(crate) const fn column(mut self, title: &'static str) -> Self {
        self.about.column = Some(title);
        self
    }

    /// Shows so many digits after the point.
    pub(crate) const fn digits(mut self, digits: usize) -> Self {
        self.about.digits = digits;
        self
    }

    /// Leaves the figure out where it is 0.
    pub(crate) const fn rare(mut self) -> Self {
        self.about.is_rare = true;
        self
    }

    /// Returns the kind of column for this figure.
    pub fn kind(&self) -> Kind {
        match self.value {
            Value::Count(_) => Kind::Int,
            Value::Real(_) => Kind::Real,
            Value::Text(_) => Kind::Text,
        }
    }

    /// Returns the value of this figure in `source`; an empty cell if `source` lacks the figure.
    pub fn cell(&self, source: &T) -> Cell {
        match self.value {
            Value::Count(count) => count(source).map_or(Cell::None, Cell::count),
            Value::Real(real) => real(source).map_or(Cell::None, Cell::Real),
            Value::Text(text) => Cell::Text(text(source).into()),
        }
    }
}

const fn figure_of<T>(
    name: &'static str,
    title: &'static str,
    unit: Unit,
    direction: Direction,
    help: &'static str,
    value: Value<T>,
) -> Figure<T> {
    let about = About { name, title, unit, direction, help, column: None, digits: 1, is_rare: false };
    Figure { about, value }
}

pub(crate) const fn count<T>(
    name: &'static str,
    title: &'static str,
    direction: Direction,
    help: &'static str,
    value: fn(&T) -> Option<u64>,
) -> Figure<T> {
    figure_of(name, title, Unit::Count, direction, help, Value::Count(value))
}

pub(crate) const fn real<T>(
    name: &'static str,
    title: &'static str,
    unit: Unit,
    direction: Direction,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> Figure<T> {
    figure_of(name, title, unit, direction, help, Value::Real(value))
}

pub(crate) const fn text<T>(
    name: &'static str,
    title: &'static str,
    help: &'static str,
    value: fn(&T) -> &str,
) -> Figure<T> {
    figure_of(name, title, Unit::Text, Direction::Neither, help, Value::Text(value))
}
