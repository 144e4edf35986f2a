//! The library of templates, set up as transformers sets up Jinja.

use std::time::SystemTime;

use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use crate::date::strftime;
use crate::guard;
use crate::json::tojson;
use crate::printed::printed;
use crate::python;
use crate::scan::OWN_NAMESPACE;
use crate::syntax::syntax;

/// Name of the function for the date. It is a variable of each rendering, because the time is an argument.
pub(crate) const STRFTIME: &str = "strftime_now";

/// Filters of the library that Jinja does not have; some give lists that are computed as they are read, which cannot be weighed.
const NOT_OF_JINJA: [&str; 5] = ["bool", "chain", "lines", "split", "zip"];
/// Bytes of a printed list or object that cost as much as one step.
const PRINTED_BYTES_PER_FUEL: u64 = 4;

/// Words with which a template refused a conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub(crate) String);

/// Returns an environment without templates.
pub(crate) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(syntax());
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_formatter(print);
    env.set_unknown_method_callback(python::method);
    env.add_filter("tojson", tojson);
    env.add_filter("string", python::text);
    env.add_filter("trim", python::trim);
    env.add_filter("int", python::int);
    env.add_filter("float", python::float);
    env.add_test("sequence", python::is_sequence);
    env.add_test("iterable", python::is_iterable);
    env.add_test("callable", python::is_callable);
    guard::add_filters(&mut env);
    for name in NOT_OF_JINJA {
        env.remove_filter(name);
    }
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Raised(message.to_string())))
    });
    let namespace = env.globals().find(|(name, _)| *name == "namespace").map(|(_, function)| function);
    env.remove_global("namespace");
    env.remove_global("debug");
    if let Some(namespace) = namespace {
        env.add_global(OWN_NAMESPACE, namespace);
    }
    env
}

/// Returns `strftime_now` for a time.
pub(crate) fn clock(now: SystemTime) -> Value {
    Value::from_function(move |format: &str| strftime(now, format))
}

/// Prints a value.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match printed(value) {
        Some(text) => {
            state.consume_fuel(text.len() as u64 / PRINTED_BYTES_PER_FUEL)?;
            Ok(out.write_str(&text)?)
        }
        None => minijinja::escape_formatter(out, state, value),
    }
}
