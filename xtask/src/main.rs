//! The `xtask` program: hands its arguments to the library and returns its exit code.

fn main() -> std::process::ExitCode {
    xtask::command::main(std::env::args_os())
}
