#![no_main]
#[path = "../src/answers.rs"]
#[expect(dead_code, reason = "the list of targets is for the replay")]
mod answers;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| answers::run("answer", bytes));
