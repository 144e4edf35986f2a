//! Limits that the library does not have: on how deeply values are nested, and on how often one value is part of another.
//!
//! The library drops, prints and compares nested values by recursion, so a deep one overflows the stack. And a list that has another list twice, which has
//! another one twice, takes 2^n steps to print, for which the library charges nothing while it compares. So each instruction that makes a value of other
//! values is followed by one that weighs the new value, and each comparison of two values weighs both. A value beyond a limit ends the rendering.

use std::collections::BTreeSet;

use minijinja::filters;
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::objects::fields;
use crate::syntax::syntax;

/// Maximum number of containers within containers. The JSON of a conversation has 128 at most.
const DEPTH_MAX: usize = 200;
/// Values that are weighed for one step.
const WEIGHED_PER_FUEL: u64 = 4;
/// Bytes of a text that weigh as much as a value.
const BYTES_PER_FUEL: u64 = 64;
/// Filter that weighs a value. No template can name it.
const WEIGH: &str = "#weigh";
/// Filter that makes a list of a repeated list.
const LIST: &str = "#list";
/// Filter that checks the key of a look-up.
const KEY: &str = "#key";
/// Place of a filter in the library's cache: none.
const UNCACHED: u8 = u8::MAX;

/// Adds the filters to an environment.
pub(crate) fn add_filters(env: &mut Environment<'static>) {
    env.add_filter(WEIGH, |state: &State, value: Value| weigh(state, &value).map(|()| value));
    env.add_filter(LIST, listed);
    env.add_filter("sort", |state: &State, value: Value, how: Kwargs| {
        weigh(state, &value).and_then(|()| filters::sort(state, value, how))
    });
    env.add_filter("unique", |state: &State, value: Value, how: Kwargs| {
        weigh(state, &value).and_then(|()| filters::unique(state, value, how))
    });
    env.add_filter("min", |state: &State, value: Value, how: Kwargs| {
        weigh(state, &value).and_then(|()| filters::min(state, value, how))
    });
    env.add_filter("max", |state: &State, value: Value, how: Kwargs| {
        weigh(state, &value).and_then(|()| filters::max(state, value, how))
    });
    env.add_filter("groupby", |state: &State, value: Value, attribute: Option<&str>, how: Kwargs| {
        weigh(state, &value).and_then(|()| filters::groupby(value, attribute, how))
    });
    for name in ["eq", "equalto", "=="] {
        env.add_test(name, |state: &State, a: Value, b: Value| weigh_both(state, &a, &b).map(|()| a == b));
    }
    for name in ["ne", "!="] {
        env.add_test(name, |state: &State, a: Value, b: Value| weigh_both(state, &a, &b).map(|()| a != b));
    }
    for name in ["lt", "lessthan", "<"] {
        env.add_test(name, |state: &State, a: Value, b: Value| weigh_both(state, &a, &b).map(|()| a < b));
    }
    for name in ["le", "<="] {
        env.add_test(name, |state: &State, a: Value, b: Value| weigh_both(state, &a, &b).map(|()| a <= b));
    }
    for name in ["gt", "greaterthan", ">"] {
        env.add_test(name, |state: &State, a: Value, b: Value| weigh_both(state, &a, &b).map(|()| a > b));
    }
    for name in ["ge", ">="] {
        env.add_test(name, |state: &State, a: Value, b: Value| weigh_both(state, &a, &b).map(|()| a >= b));
    }
    env.add_test("in", |state: &State, a: Value, b: Value| {
        weigh_both(state, &a, &b).and_then(|()| minijinja::tests::is_in(state, &a, &b))
    });
    env.add_filter(KEY, |value: Value| if is_container(&value) { Err(no_key(&value)) } else { Ok(value) });
}

/// Compiles a template, with guards.
///
/// # Errors
///
/// The template is malformed.
pub(crate) fn compile<'a>(name: &'a str, source: &'a str) -> Result<Instructions<'a>, Error> {
    let tree = parse(source, name, syntax())?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (plain, _) = generator.finish();
    Ok(guarded(&plain, name, source))
}

/// Returns a repeated list, as in `[a] * 3`, as a list: the library computes its items as they are read.
fn listed(state: &State, value: Value) -> Result<Value, Error> {
    match value.len() {
        Some(n) if value.kind() == ValueKind::Iterable => {
            state.consume_fuel(n as u64)?;
            Ok(value.try_iter()?.collect())
        }
        _ => Ok(value),
    }
}

/// Pays for a walk through a value.
///
/// # Errors
///
/// The value is nested too deeply, or has more values than there are steps left.
pub(crate) fn weigh(state: &State, value: &Value) -> Result<(), Error> {
    if !is_container(value) {
        return Ok(());
    }
    let left = state.fuel_levels().map_or(0, |(_, left)| left);
    let (mut open, mut weight) = (vec![(value.clone(), 1)], 0_u64);
    while let Some((value, depth)) = open.pop() {
        weight += 1;
        if weight > left {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        if depth > DEPTH_MAX {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a value has more than {DEPTH_MAX} containers within each other"),
            ));
        }
        match value.kind() {
            // Bytes count as they do when they are copied.
            ValueKind::String => weight += value.as_str().map_or(0, str::len) as u64 / BYTES_PER_FUEL,
            ValueKind::Seq => open.extend(value.try_iter()?.map(|item| (item, depth + 1))),
            ValueKind::Map => {
                for (key, item) in fields(&value) {
                    if is_container(&key) {
                        return Err(no_key(&key));
                    }
                    open.push((item, depth + 1));
                }
            }
            _ => {}
        }
    }
    state.consume_fuel(weight / WEIGHED_PER_FUEL)
}

/// Pays for a comparison, if both values have other values within.
///
/// # Errors
///
/// As [`weigh`].
pub(crate) fn weigh_both(state: &State, a: &Value, b: &Value) -> Result<(), Error> {
    if is_container(a) && is_container(b) {
        weigh(state, a)?;
        weigh(state, b)?;
    }
    Ok(())
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map)
}

fn no_key(value: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a {} cannot be a key", value.kind()))
}

/// Returns `true` for instructions that make a value of other values.
fn makes(instruction: &Instruction<'_>) -> bool {
    matches!(
        instruction,
        Instruction::BuildList(_)
            | Instruction::BuildTuple(_)
            | Instruction::BuildMap(_)
            | Instruction::Add
            | Instruction::Mul
            | Instruction::ApplyFilter(..)
            | Instruction::CallFunction(..)
            | Instruction::CallMethod(..)
            | Instruction::CallObject(_)
    )
}

/// Returns `true` for instructions that compare two values.
fn compares(instruction: &Instruction<'_>) -> bool {
    matches!(
        instruction,
        Instruction::Eq
            | Instruction::Ne
            | Instruction::Lt
            | Instruction::Lte
            | Instruction::Gt
            | Instruction::Gte
            | Instruction::In
            | Instruction::CompareAndPreserve(_)
    )
}

/// Returns the place in the code to which an instruction may jump.
fn target<'a>(instruction: &'a mut Instruction<'_>) -> Option<&'a mut u32> {
    match instruction {
        Instruction::Jump(to)
        | Instruction::JumpIfFalse(to)
        | Instruction::JumpIfFalseOrPop(to)
        | Instruction::JumpIfTrueOrPop(to)
        | Instruction::Iterate(to)
        | Instruction::BuildMacro(_, to, _) => Some(to),
        _ => None,
    }
}

/// Returns the instructions with guards between them.
fn guarded<'a>(plain: &Instructions<'a>, name: &'a str, source: &'a str) -> Instructions<'a> {
    let mut all: Vec<Instruction<'a>> = (0..).map_while(|at| plain.get(at).cloned()).collect();
    let targets: BTreeSet<u32> = all.iter_mut().filter_map(|instruction| target(instruction).copied()).collect();
    let guard = |filter| Instruction::ApplyFilter(filter, Some(1), UNCACHED);
    let mut code: Vec<(u32, Instruction<'a>)> = Vec::new();
    let mut places = Vec::new();
    for (at, instruction) in (0_u32..).zip(&all) {
        // A jump lands on the guards in front of an instruction, not behind them.
        places.push(code.len() as u32);
        let constant = at.checked_sub(1).and_then(|before| all.get(before as usize).cloned());
        let is_constant = matches!(constant, Some(Instruction::LoadConst(value)) if !is_container(&value));
        if !is_constant || targets.contains(&at) {
            if compares(instruction) {
                let both = [guard(WEIGH), Instruction::Swap, guard(WEIGH), Instruction::Swap];
                code.extend(both.map(|guard| (at, guard)));
            } else if matches!(instruction, Instruction::GetItem) {
                code.push((at, guard(KEY)));
            }
        }
        code.push((at, instruction.clone()));
        if matches!(instruction, Instruction::Mul) {
            code.push((at, guard(LIST)));
        }
        if makes(instruction) {
            code.push((at, guard(WEIGH)));
        }
    }
    places.push(code.len() as u32);
    let mut instructions = Instructions::new(name, source);
    for (from, mut instruction) in code {
        if let Some(to) = target(&mut instruction) {
            *to = places.get(*to as usize).copied().unwrap_or(*to);
        }
        match (plain.get_span(from), plain.get_line(from)) {
            (Some(span), _) => instructions.add_with_span(instruction, span),
            (None, Some(line)) => instructions.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX)),
            (None, None) => instructions.add(instruction),
        };
    }
    instructions
}
