//! The `homestak` program: hands its arguments to the library and returns its exit code.

fn main() -> std::process::ExitCode {
    homestak_cli::main(std::env::args_os())
}
