//! The program `homestak-agent`.

fn main() -> std::process::ExitCode {
    homestak_agent::main(std::env::args_os())
}
