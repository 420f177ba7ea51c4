#![no_main]
#[path = "../src/requests.rs"]
#[expect(dead_code, reason = "the list of targets is for the replay")]
mod requests;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| requests::run("provisioning", bytes));
