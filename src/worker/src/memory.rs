//! Memory that this process can have: of the machine, of its control groups (containers), and of its own limit of addresses.

use std::path::{Path, PathBuf};

use crate::error::ModelError;

/// Folder of the control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// Memory in addition to the weights of a model, as a part of the weights: buffers, and what the parts of the program take.
const BESIDE_WEIGHTS: u64 = 16;

/// Limit of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    /// Memory of all processes of the group, at most, bytes.
    bytes: u64,
    /// Memory in use that cannot be taken back, bytes.
    used: u64,
}

/// Files of the kernel that tell of memory, by a function that reads one.
struct Kernel<R>(R);

impl<R: Fn(&Path) -> Option<String>> Kernel<R> {
    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        (self.0)(path.as_ref())
    }

    /// Returns the bytes in a line of a file as `name: NUMBER kB`.
    fn kilobytes(&self, path: &str, name: &str) -> Option<u64> {
        let text = self.read(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// Returns the limits of the control groups of this process, of version 2 and version 1.
    fn limits(&self) -> Vec<Limit> {
        let groups = self.read("/proc/self/cgroup").unwrap_or_default();
        let mut limits = Vec::new();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(number), Some(controllers), Some(own)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let (root, names) = match controllers {
                "" if number == "0" => (PathBuf::from(GROUPS), ["memory.max", "memory.current", "inactive_file"]),
                all if all.split(',').any(|name| name == "memory") => {
                    let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
                    (Path::new(GROUPS).join("memory"), names)
                }
                _ => continue,
            };
            let own = root.join(own.trim_start_matches('/'));
            let folders = own.ancestors().take_while(|folder| folder.starts_with(&root));
            limits.extend(folders.filter_map(|folder| self.limit(folder, names)));
        }
        limits
    }

    /// Returns the limit of the control group with a folder. `names` are the files of limit and use, and the count of file pages not in active
    /// use in `memory.stat`.
    fn limit(&self, folder: &Path, [most, used, inactive]: [&str; 3]) -> Option<Limit> {
        let number = |name: &str| self.read(folder.join(name))?.trim().parse::<u64>().ok();
        // The limit is the word "max" without one.
        let bytes = number(most)?;
        let stat = self.read(folder.join("memory.stat")).unwrap_or_default();
        let files = stat.lines().find_map(|line| line.strip_prefix(inactive)?.trim().parse::<u64>().ok());
        Some(Limit { bytes, used: number(used).unwrap_or(0).saturating_sub(files.unwrap_or(0)) })
    }

    /// Returns the addresses left below the limit of the process (`ulimit -v`), bytes.
    fn addresses_left(&self) -> Option<u64> {
        let limits = self.read("/proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
        let most: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(most.saturating_sub(self.kilobytes("/proc/self/status", "VmSize").unwrap_or(0)))
    }

    fn total(&self) -> Option<u64> {
        let all = self.kilobytes("/proc/meminfo", "MemTotal")?;
        Some(self.limits().into_iter().map(|limit| limit.bytes).fold(all, u64::min))
    }

    fn available(&self) -> Option<u64> {
        let machine = self.kilobytes("/proc/meminfo", "MemAvailable")?;
        let groups = self.limits().into_iter().map(|limit| limit.bytes.saturating_sub(limit.used));
        Some(groups.chain(self.addresses_left()).fold(machine, u64::min))
    }
}

fn kernel() -> Kernel<impl Fn(&Path) -> Option<String>> {
    Kernel(|path: &Path| std::fs::read_to_string(path).ok())
}

/// Returns the memory that this machine has, or a control group of this process if that is less, bytes; `None` where the kernel does not say.
pub fn machine_memory() -> Option<u64> {
    kernel().total()
}

/// Returns the memory left to allocate according to the kernel, bytes: the least of the machine's, the control groups' and the
/// process's own. `None` where the kernel reports none.
pub(crate) fn available() -> Option<u64> {
    kernel().available()
}

/// Checks that the weights in `path`, of so many bytes, fit into the memory left.
///
/// # Errors
/// If they do not.
pub(crate) fn check_weights(path: &Path, bytes: u64) -> Result<(), ModelError> {
    fit(path, bytes, available())
}

fn fit(path: &Path, bytes: u64, available: Option<u64>) -> Result<(), ModelError> {
    match available {
        Some(available) if bytes.saturating_add(bytes / BESIDE_WEIGHTS) > available => {
            Err(too_large(path, bytes, Some(available)))
        }
        _ => Ok(()),
    }
}

/// Describes weights, of so many bytes, for which memory ran out.
pub(crate) fn exhausted(path: &Path, bytes: u64) -> ModelError {
    too_large(path, bytes, available())
}

fn too_large(path: &Path, bytes: u64, available: Option<u64>) -> ModelError {
    let available = available.map_or_else(|| "less".to_owned(), |available| format!("about {}", size(available)));
    ModelError::Memory { path: path.to_owned(), needed: size(bytes), available }
}

/// Returns a size for people.
pub(crate) fn size(bytes: u64) -> String {
    const MIB: f64 = 1024.0 * 1024.0;
    let bytes = bytes as f64;
    if bytes < 1024.0 * MIB { format!("{:.1} MiB", bytes / MIB) } else { format!("{:.1} GiB", bytes / MIB / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1024;

    /// Returns memory as told by these files: all, and left.
    fn memory(files: &[(&str, &str)]) -> (Option<u64>, Option<u64>) {
        let kernel = Kernel(|path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
        });
        (kernel.total(), kernel.available())
    }

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemTotal:  900 kB\nMemFree: 1 kB\nMemAvailable:   600 kB\n");

    #[test]
    fn the_memory_of_a_machine_without_limits_is_its_own() {
        assert_eq!(memory(&[]), (None, None));
        assert_eq!(memory(&[MACHINE]), (Some(900 * KB), Some(600 * KB)));
        let free = [MACHINE, ("/proc/self/cgroup", "0::/a\n"), ("/sys/fs/cgroup/a/memory.max", "max\n")];
        assert_eq!(memory(&free), (Some(900 * KB), Some(600 * KB)));
        if cfg!(target_os = "linux") {
            assert!(machine_memory().unwrap() >= available().unwrap() && available().unwrap() > 1 << 20);
        }
    }

    #[test]
    fn a_control_group_of_version_2_limits_its_children() {
        let groups = [
            MACHINE,
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "512000\n"),
            ("/sys/fs/cgroup/a/memory.current", "100000\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 40000\nactive_file 7\n"),
        ];
        assert_eq!(memory(&groups), (Some(512_000), Some(452_000)), "file pages out of use can be taken back");
    }

    #[test]
    fn a_control_group_of_version_1_limits_its_processes_and_the_root_those_of_a_container() {
        let unlimited = ("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
        let groups = [
            MACHINE,
            ("/proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n"),
            unlimited,
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "90000\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 10000\n"),
        ];
        assert_eq!(memory(&groups), (Some(300_000), Some(220_000)));
        assert_eq!(memory(&groups[..3]), (Some(900 * KB), Some(600 * KB)));
    }

    #[test]
    fn a_limit_of_addresses_counts_those_in_use() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space         409600               unlimited            bytes\n";
        let status = ("/proc/self/status", "Name: x\nVmSize:\t  100 kB\nVmRSS: 3 kB\n");
        let (_, available) = memory(&[MACHINE, ("/proc/self/limits", limits), status]);
        assert_eq!(available, Some(300 * KB));
        let none = "Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(memory(&[MACHINE, ("/proc/self/limits", none), status]).1, Some(600 * KB));
    }

    #[test]
    fn weights_larger_than_the_memory_left_are_refused_in_one_line() {
        let fit = |bytes, available| fit(Path::new("m.gguf"), bytes, available).map_err(|error| error.to_string());
        assert_eq!([fit(1 << 40, None), fit(16 << 20, Some(17 << 20))], [Ok(()), Ok(())]);
        let line = "m.gguf has 20.0 GiB of weights, but about 512.0 MiB of memory can be had; take a smaller or more quantised model, or raise the limit of memory (of the container, ulimit -v)";
        assert_eq!(fit(20 << 30, Some(512 << 20)), Err(line.into()));
    }
}
