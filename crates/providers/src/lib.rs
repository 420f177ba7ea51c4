//! REACHES: places where nodes live.
