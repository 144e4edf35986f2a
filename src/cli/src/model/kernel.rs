//! Arithmetic of an embedded model's products with BF16 weights: the setting `--kernel`.

use anyhow::Context;
use tracing::{info, warn};
use trunkline_core::names::registry::choose;
use trunkline_worker::{Kernel, Model};

use crate::model::model_source::ModelSource;

/// Value of the setting for the fastest kernel of the machine.
const AUTO: &str = "auto";

/// Gives a model the kernel of the setting, and says so in the log. Unless set, the built-in model has the portable one, so that its texts are the same on
/// every machine, and others the fastest of this machine.
///
/// # Errors
/// In one line, if there is no kernel of the name, or not on this machine.
pub(crate) fn with_kernel(model: Model, source: ModelSource<'_>, setting: Option<&str>) -> anyhow::Result<Model> {
    let kernel = match setting {
        None if matches!(source, ModelSource::BuiltIn) => Kernel::Portable,
        None => Kernel::of_machine(),
        Some(name) => named(name)?,
    };
    let model = model.with_kernel(kernel);
    match model.kernel() {
        used if used != kernel && setting.is_some() => warn!("--kernel has no effect: the model has no BF16 weights"),
        Kernel::Portable => {}
        used => info!(kernel = used.name(), "products with BF16 weights"),
    }
    Ok(model)
}

fn named(name: &str) -> anyhow::Result<Kernel> {
    let all: Vec<_> = [AUTO].into_iter().chain(Kernel::NAMES).map(|name| (name, name)).collect();
    match choose("kernel", &all, name)? {
        AUTO => Ok(Kernel::of_machine()),
        name => Kernel::of_name(name).with_context(|| {
            format!("kernel is {name}, which this machine or its system does not offer; give portable or auto")
        }),
    }
}

/// Returns the revision of a model whose KV and texts are of a kernel: other kernels than the portable one have one of their own.
pub(crate) fn revision_with(revision: &str, model: &Model) -> String {
    match model.kernel() {
        Kernel::Portable => revision.into(),
        kernel => format!("{revision}+{}", kernel.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_named_in_the_revision_unless_it_is_the_portable_one() {
        let source = ModelSource::of(None);
        let of = |setting: Option<&str>| with_kernel(source.model().unwrap(), source, setting).unwrap();
        let revision = |setting: Option<&str>| revision_with("r", &of(setting));
        assert_eq!((of(None).kernel(), revision(None)), (Kernel::Portable, "r".into()));
        assert_eq!((of(Some("portable")).kernel(), revision(Some("portable"))), (Kernel::Portable, "r".into()));
        let fastest = Kernel::of_machine();
        let expected = if fastest == Kernel::Portable { "r".into() } else { format!("r+{}", fastest.name()) };
        assert_eq!((of(Some(AUTO)).kernel(), revision(Some(AUTO))), (fastest, expected));
        let fault = |setting| with_kernel(source.model().unwrap(), source, Some(setting)).err().unwrap().to_string();
        assert_eq!(fault("sse"), "unknown kernel 'sse'; there are: auto, portable, amx-bf16");
        if fastest == Kernel::Portable {
            assert!(
                fault("amx-bf16").starts_with("kernel is amx-bf16, which this machine or its system does not offer")
            );
        }
    }
}
