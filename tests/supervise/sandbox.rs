//! A sandbox that denies single calls of the kernel, as container profiles do: the tree is dead in
//! time all the same.

use crate::{trials, world::World};

#[cfg(target_arch = "x86_64")]
trials!(denied_calls_keep_no_process_alive);
#[cfg(not(target_arch = "x86_64"))]
trials!();

/// Denies the call with this number with this error, then executes the rest of its arguments.
#[cfg(target_arch = "x86_64")]
const DENY: &str = "
import ctypes, os, struct, sys
number, error = int(sys.argv[1]), int(sys.argv[2])
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7fff0000)]
program = b''.join(struct.pack('HBBI', *step) for step in code)
buffer = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('steps', ctypes.c_void_p)]
filter = Program(len(code), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[3], sys.argv[3:])
";

/// The guardian's calls that profiles are known to deny, by their numbers: the others end the run
/// before its command starts.
#[cfg(target_arch = "x86_64")]
const CALLS: [(&str, u32); 7] = [
    ("pidfd_send_signal", 424),
    ("pidfd_open", 434),
    ("close_range", 436),
    ("openat2", 437),
    ("faccessat2", 439),
    ("statx", 332),
    ("setpriority", 141),
];

#[cfg(target_arch = "x86_64")]
fn denied_calls_keep_no_process_alive() {
    const EPERM: &str = "1";
    const ENOSYS: &str = "38";
    let stubborn = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo > DIR/ready; while :; do sleep 0.02; done; : TOKEN' & wait; : TOKEN";
    for (name, number) in CALLS {
        for error in [EPERM, ENOSYS] {
            let mut world = World::new();
            let number = number.to_string();
            world.start_behind(
                &["python3", "-c", DENY, &number, error],
                "max=500 grace=200",
                &["sh", "-c", stubborn],
            );
            world.file("ready");
            let (_, how) = world.event("Ended");
            assert!(how.contains("Some(TimeUp)"), "{name} {error}: {how}");
            world.status();
            assert!(
                world.alive().is_empty(),
                "{name} {error}: {:?}",
                world.alive()
            );
            world.await_end();
        }
    }
}
