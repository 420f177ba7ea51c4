#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| homestak_fuzz::run("secrets", bytes));
