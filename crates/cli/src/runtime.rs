//! Runs asynchronous work to completion, and handles the signals that stop it.

use std::process::ExitCode;

use homestak_driver::runs::Interrupt;
use homestak_driver::{Driver, DriverError};
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::Outcome;
use crate::ui::Printer;
use crate::ui::progress::Screen;

/// Runs a future to its end on a runtime of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, DriverError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| DriverError::failed(format!("Cannot start: {error}.")))?;
    let value = runtime.block_on(future);
    // Background work that is no longer needed is not waited for.
    runtime.shutdown_background();
    Ok(value)
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn shutdown_signal() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        // Cancel safety: only ever waited for.
        _ = terminate.recv() => {}
        // Cancel safety: as above.
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// Runs a command to its end. A signal ends it, except while [`drive`] handles signals.
pub(crate) fn run_command(
    work: impl Future<Output = Outcome>,
    screen: &Screen,
    printer: &Printer,
) -> Outcome {
    block_on(async {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                // Cancel safety: no step runs when it is dropped.
                done = &mut work => return done,
                // Cancel safety: only waited for.
                () = shutdown_signal() => {}
            }
            if !screen.is_driven() {
                printer.message(match screen.is_asking() {
                    true => "Interrupted. Nothing was changed.",
                    false => "Interrupted. No run was in progress; what was created is kept.",
                });
                return Ok(ExitCode::from(130));
            }
        }
    })?
}

/// Runs work with progress. The first interrupt asks it to stop, the second aborts it.
pub(crate) async fn drive<T>(
    work: impl AsyncFnOnce(Interrupt) -> Result<T, DriverError>,
    screen: &Screen,
    driver: &Driver,
    printer: &Printer,
) -> Result<Option<T>, DriverError> {
    let (interrupter, interrupt) = Interrupt::new();
    let no_signals =
        |error| DriverError::failed(format!("Cannot install signal handlers: {error}."));
    let mut interrupts = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminates = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(100));
    let mut work = std::pin::pin!(work(interrupt));
    let mut asked = false;
    screen.set_driven(true);
    let done = loop {
        tokio::select! {
            // Cancel safety: dropped only on the second interrupt; every intent is in the journal.
            done = &mut work => break Some(done),
            // Cancel safety: a signal that is not received now is received in the next round.
            _ = interrupts.recv() => {}
            // Cancel safety: as above.
            _ = terminates.recv() => {}
            // Cancel safety: a tick that is missed is only a redraw.
            _ = tick.tick() => {
                screen.tick(driver.operator.clock.now());
                continue;
            }
        }
        if std::mem::replace(&mut asked, true) {
            break None;
        }
        interrupter.request();
        screen.note(
            printer,
            "Stopping: no new steps are started, and steps that cannot be interrupted are completed. Interrupt again to abort.",
        );
    };
    screen.set_driven(false);
    screen.finish();
    done.transpose()
}
