//! (door sign follows)
