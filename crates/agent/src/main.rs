//! The `homestak-agent` program: hands its arguments to the library and returns its exit code.

fn main() -> std::process::ExitCode {
    homestak_agent::main(std::env::args_os())
}
